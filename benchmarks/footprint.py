"""What Outrider costs before and beside its work: ``python benchmarks/footprint.py [--runs 5] [--json PATH]``.

Fresh processes, default settings: processor time to the first token and of ``--help``, beside llama.cpp's Python client
if ``make peers`` was run; memory of an idle server and after 100 requests; disk taken by the packages of an environment
that holds the base dependencies alone, if ``--environment`` names one. Medians; ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from outrider.cli._report import environment, write_json
from outrider.models.loader.resolve import resolve

PROMPT = "The capital of France is"
PEERS = Path(".venv-peers/bin/python")
LLAMA_CPP = (
    "import sys, llama_cpp; llama = llama_cpp.Llama(sys.argv[1], n_ctx=512, verbose=False); "
    "print(llama.create_completion(sys.argv[2], max_tokens=1, temperature=0)['choices'][0]['text'])"
)


def timed(command: Sequence[str]) -> tuple[float, float]:
    """Processor and elapsed seconds of one run. Raises ``SystemExit`` if it fails."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    elapsed, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, elapsed


def resident_mib(process: int) -> float:
    """Resident memory of a process in MiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def server_memory(python: str, model: str, port: int, requests: int) -> dict[str, float]:
    """Resident MiB of a server that has loaded and answered nothing, and after ``requests`` chats, 8 at a time."""
    command = [python, "-m", "outrider", "serve", model, "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{base}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise SystemExit("the server did not become ready")
        time.sleep(1.0)
        idle = resident_mib(server.pid)

        def chat(number: int) -> None:
            body = {"messages": [{"role": "user", "content": f"Tell me about the number {number}."}], "max_tokens": 32}
            request = urllib.request.Request(
                f"{base}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            urllib.request.urlopen(request, timeout=600).read()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(chat, range(requests)))
        return {"idle": idle, f"after {requests} requests": resident_mib(server.pid)}
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)


def packages_mib(environment_folder: Path) -> float:
    """Disk taken by an environment's packages in MiB."""
    (site,) = environment_folder.glob("lib/python*/site-packages")
    return sum(path.stat().st_blocks * 512 for path in site.rglob("*") if path.is_file()) / 2**20


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument(
        "--environment", help="a virtual environment with the base dependencies alone; also used to run"
    )
    parser.add_argument("--json", default="-", help="write the result here too")
    arguments = parser.parse_args()
    python = sys.executable if arguments.environment is None else str(Path(arguments.environment) / "bin/python")
    path = resolve(arguments.model).path
    outrider = [python, "-m", "outrider"]
    generate = [*outrider, "generate", arguments.model, "--prompt", PROMPT, "--max-tokens", "1", "--temperature", "0"]
    commands = {"first token": generate, "--help": [*outrider, "--help"]}
    if PEERS.exists():
        commands["llama.cpp, first token"] = [str(PEERS), "-c", LLAMA_CPP, str(path), PROMPT]
    for command in commands.values():
        timed(command)  # the first start compiles modules and measures the costs of passes
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(arguments.runs):
        for name, command in commands.items():
            runs[name].append(timed(command))
    seconds = {
        name: {
            "processor": statistics.median(processor for processor, _ in each),
            "elapsed": statistics.median(elapsed for _, elapsed in each),
        }
        for name, each in runs.items()
    }
    report: dict[str, Any] = {
        "seconds": seconds,
        "weights_mib": path.stat().st_size / 2**20,
        "resident_mib": server_memory(python, arguments.model, arguments.port, arguments.requests),
        "load_average": os.getloadavg()[0],
    }
    if arguments.environment is not None:
        report["packages_mib"] = packages_mib(Path(arguments.environment))
    for name, each in seconds.items():
        print(f"{name:24s} {each['processor']:.2f} s processor, {each['elapsed']:.2f} s elapsed", file=sys.stderr)
    print(f"resident MiB {report['resident_mib']}, packages {report.get('packages_mib')}", file=sys.stderr)
    report |= environment(vars(arguments))
    if arguments.json != "-":
        write_json(report, arguments.json)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
