"""Decoding beside other processes, by number of threads: ``python benchmarks/busy_machine.py [--model FILE.gguf]``.

Outrider with 1 thread, with all, and with the number that it chooses by measurement, and llama.cpp if it is installed
(``make peers``), take turns of a fraction of a second, with no busy process beside them and with two.
``--before PYTHON`` adds an older Outrider, whose threads are fixed. Ratios are medians over rounds of what ran next to
each other. The last line of stdout is the result as one JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from outrider.bench.engines import peer_specs
from outrider.bench.paired import paired_ratio
from outrider.bench.worker import MissingEngineError, Worker
from outrider.cli._report import environment, write_json
from outrider.models.loader.packaged import PACKAGED_MODELS, packaged_path

PROMPT = list(range(1000, 1032))
MAX_MODEL_LEN = 1024
TIMEOUT = 120.0
CHOSEN = "by measurement"
PAST = 4
"""First rounds of a condition that do not count: the number of threads settles in them."""
SPIN = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"
LONGEST_BUSY = 600.0
"""Seconds after which a busy process ends whatever happens to this one."""


def serve(threads: str) -> None:
    """Be one of the workers: ``threads`` is a number, always at work, or a limit such as ``<=2``."""
    from outrider.bench import outrider_worker

    native: Any = importlib.import_module("outrider._native")  # an older revision has no other door in common with this

    fixed = not threads.startswith("<=")
    native.set_num_threads(int(threads.removeprefix("<=")), fixed=fixed)
    outrider_worker.main()


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """``count`` processes that compute without end beside what is measured."""
    processes = [subprocess.Popen([sys.executable, "-c", SPIN, str(LONGEST_BUSY)]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def start(name: str, command: Sequence[str], env: dict[str, str], model: str, threads: int) -> Worker | None:
    """A loaded worker, or None where the engine is not installed."""
    settings: dict[str, Any] = {}
    if not name.startswith("llama.cpp"):
        settings = {"speculative": {"method": "off"}, "prefix_caching": False, "kv_cache_memory": 128 << 20}
    worker = None
    try:
        worker = Worker(name, command, env)
        worker.ask(
            "load",
            timeout=TIMEOUT,
            model=model,
            threads=threads,
            max_model_len=MAX_MODEL_LEN,
            draft_model=None,
            settings=settings,
        )
    except MissingEngineError as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        if worker is not None:
            worker.close()
        return None
    return worker


def rates(worker: Worker, rows: int, tokens: int) -> dict[str, float]:
    """Tokens per second of decoding one request, and rows per second of passes over ``rows`` rows."""
    mode = "" if worker.name.startswith("llama.cpp") else "off"
    made = worker.ask("generate", timeout=TIMEOUT, token_ids=PROMPT, max_tokens=tokens + 1, end_token_ids=[], mode=mode)
    found = {"1": made["rest_tokens"] / made["rest_s"]} if made["rest_tokens"] else {}
    times = max(1, tokens // 2)
    passes = worker.ask("forward", timeout=TIMEOUT, context=PROMPT, rows=PROMPT[:rows], counts=[rows], times=times)
    found[str(rows)] = rows * times / sum(passes["seconds"][str(rows)])
    return found


def measure(workers: Sequence[Worker], processes: int, rounds: int, rows: int, tokens: int) -> dict[str, Any]:
    """Each arm's figures beside ``processes`` busy ones: median rates, and ratios round by round."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    with busy(processes):
        for turn in range(PAST + rounds):
            order = list(workers) if turn % 2 else list(reversed(workers))
            for worker in order:
                for size, rate in rates(worker, rows, tokens).items():
                    if turn >= PAST:
                        found.setdefault(size, {}).setdefault(worker.name, {})[turn] = rate
    report: dict[str, Any] = {}
    for size, arms in found.items():
        report[size] = {}
        for name, by_round in arms.items():
            middle = sorted(by_round.values())[len(by_round) // 2]
            report[size][name] = {"tokens_per_s": middle}
            ratio = paired_ratio(arms[CHOSEN], by_round)
            if ratio is not None and name != CHOSEN:
                report[size][name]["chosen_over_it"] = ratio.to_dict()
            shown = "" if ratio is None or name == CHOSEN else f"   {CHOSEN} over it: {ratio.median:.2f}"
            print(f"{processes} busy, {size} rows, {name:20s} {middle:7.1f} tokens/s{shown}", file=sys.stderr)
    return report


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(packaged_path(PACKAGED_MODELS["smollm2-135m-instruct"])))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=24, help="of one turn")
    parser.add_argument("--rows", type=int, default=4, help="of the passes over several rows")
    parser.add_argument("--busy", type=int, nargs="*", default=[0, 2], help="numbers of busy processes")
    parser.add_argument("--before", help="the Python of an older Outrider")
    parser.add_argument("--json", default="-", help="write the result here too")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve)
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    script, everything = str(Path(__file__).resolve()), str(arguments.threads)
    arms: list[tuple[str, tuple[str, ...], dict[str, str]]] = []
    for n in dict.fromkeys(("1", everything)):
        arms.append((f"{n} fixed", (sys.executable, script, "--serve", n), env))
    arms.append((CHOSEN, (sys.executable, script, "--serve", f"<={everything}"), env))
    if arguments.before:
        for n in dict.fromkeys(("1", everything)):
            old = (arguments.before, "-m", "outrider.bench.outrider_worker")
            arms.append((f"before, {n}", old, {**env, "OUTRIDER_NUM_THREADS": n}))
    for spec in peer_specs(["llama.cpp"], None, arguments.threads):
        arms.append((spec.name, spec.command, dict(spec.env)))
    with contextlib.ExitStack() as stack:
        workers = []
        for name, command, its_env in arms:
            worker = start(name, command, its_env, arguments.model, arguments.threads)
            if worker is not None:
                workers.append(stack.enter_context(worker))
        busy_processes = {
            str(n): measure(workers, n, arguments.rounds, arguments.rows, arguments.tokens) for n in arguments.busy
        }
    asked = {k: v for k, v in vars(arguments).items() if k not in ("before", "serve", "json")}
    report = {"busy_processes": busy_processes, **environment({**asked, "model": Path(arguments.model).name})}
    if arguments.json != "-":
        write_json(report, arguments.json)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
