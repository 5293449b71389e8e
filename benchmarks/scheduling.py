"""What deciding costs per step: ``python -m benchmarks.scheduling [--requests 16] [--json PATH|-]``.

Runs chat prompts side by side and times, per step, what scheduler and speculator do: granting tokens,
retrieving drafts, choosing among them, committing (with ``text``, the detokenizing) and learning; ``pass`` is
the forward pass. Seconds are the thread's own processor time. Medians over steps; ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import operator
import statistics
import sys
import time
from typing import Any

from benchmarks.never_slower import load, prompts

from outrider import SamplingParams
from outrider.cli._report import environment, write_json
from outrider.request_state import RequestState

PARTS = {
    "schedule": ("scheduler", "schedule"),
    "draft": ("speculator", "propose"),
    "choose": ("speculator.policy", "plan"),
    "commit": ("scheduler", "commit"),
    "learn": ("speculator", "learn"),
    "judge": ("", "verify"),
    "pass": ("runner", "forward"),
}
"""``choose`` is within ``draft``, ``text`` within ``commit``."""

DECIDING = ("schedule", "draft", "commit", "learn")


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--json", default="-", help="write the result here too")
    arguments = parser.parse_args()
    llm = load(arguments.model, {"method": "suffix"})
    spent = dict.fromkeys(PARTS, 0.0)
    for part, (owner, name) in PARTS.items():
        _time(operator.attrgetter(owner)(llm.engine) if owner else llm.engine, name, part, spent)
    spent["text"] = 0.0
    _time(RequestState, "add_text", "text", spent)
    params = SamplingParams(temperature=0.0, max_tokens=arguments.tokens, ignore_eos=True)
    asked = prompts(llm, "chat", arguments.requests, 0)
    requests = [llm.engine.add_request(str(i), prompt, params) for i, prompt in enumerate(asked)]
    while any(request.num_output_tokens == 0 for request in requests):
        llm.engine.step()
    steps: list[dict[str, float]] = []
    while all(not request.finished for request in requests):
        spent.update(dict.fromkeys(spent, 0.0))
        begin = time.thread_time()
        llm.engine.step()
        steps.append({**spent, "step": time.thread_time() - begin})
    medians = {part: 1e3 * statistics.median(step[part] for step in steps) for part in (*spent, "step")}
    deciding = 1e3 * statistics.median(sum(s[part] for part in DECIDING) - s["text"] for s in steps)
    print(
        f"{arguments.requests} requests, {len(steps)} steps: deciding {deciding:.2f} ms of {medians['step']:.1f} ms ("
        + ", ".join(f"{part} {medians[part]:.2f}" for part in PARTS)
        + ")",
        file=sys.stderr,
    )
    report = {"median_ms": medians, "deciding_ms": deciding, "steps": len(steps), **environment(vars(arguments))}
    if arguments.json != "-":
        write_json(report, arguments.json)
    print(json.dumps(report))
    return 0


def _time(owner: Any, name: str, part: str, spent: dict[str, float]) -> None:
    inner = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.thread_time()
        try:
            return inner(*args, **kwargs)
        finally:
            spent[part] += time.thread_time() - begin

    setattr(owner, name, timed)


if __name__ == "__main__":
    raise SystemExit(main())
