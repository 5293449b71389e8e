"""Start-up times and the demo's figures: ``make bench``, or ``python benchmarks/first_light.py --json PATH|-``.

The last line of stdout is the result as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

from outrider.cli._report import environment, write_json


def seconds(command: list[str], repeats: int) -> list[float]:
    """Wall seconds of each of ``repeats`` runs of ``command``, after one that is not counted."""
    taken = []
    for run in range(repeats + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        if run:
            taken.append(time.perf_counter() - start)
    return taken


def first_token(repeats: int) -> list[float]:
    """Seconds from the start of the process to the first character of ``generate``, after one warm-up start."""
    command = [sys.executable, "-m", "outrider", "generate", "smollm2-135m-instruct"]
    command += ["--prompt", "The capital of France is", "--max-tokens", "4"]
    taken = []
    for run in range(repeats + 1):
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            if run:
                taken.append(time.perf_counter() - start)
            process.stdout.read()
    return taken


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="-", help="write the result here too; - prints it alone")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    module = [sys.executable, "-m", "outrider"]
    help_s = seconds([*module, "--help"], 2 * arguments.repeats)
    start_s = first_token(arguments.repeats)
    demo = subprocess.run([*module, "demo", "--json", "-"], check=True, capture_output=True, text=True)
    report = {
        "help_s": {"median": statistics.median(help_s), "all": help_s},
        "first_token_second_start_s": {"median": statistics.median(start_s), "all": start_s},
        "demo": json.loads(demo.stdout)["prompts"],
        **environment(vars(arguments)),
    }
    print(f"outrider --help: {statistics.median(help_s):.3f} s", file=sys.stderr)
    print(f"first token of generate, second start: {statistics.median(start_s):.2f} s", file=sys.stderr)
    if arguments.json != "-":
        write_json(report, arguments.json)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
