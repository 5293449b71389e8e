"""The share of a decode step that is not the model's forward pass: ``python -m benchmarks.python_share [--model M]``.

Steps with speculation off and with ngram take turns; medians over all decode steps. The last line of stdout is the
result as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

from benchmarks.steps import timed_steps

from outrider import LLM, SamplingParams
from outrider.cli._report import environment, write_json

PROMPT = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"


def measure(llm: LLM, params: SamplingParams) -> list[tuple[float, float]]:
    """(seconds of the step, seconds of them in the forward pass) of every decode step."""
    return [(step.whole, step.inside) for step in timed_steps(llm, PROMPT, params)][1:]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", default="-", help="write the result here too")
    arguments = parser.parse_args()
    speculative = {"method": "ngram", "num_speculative_tokens": 4, "adaptive": False}
    llm = LLM(arguments.model, speculative_config=speculative, kv_cache_memory=256 << 20)
    modes: dict[str, dict[str, Any]] = {
        "greedy, off": {"temperature": 0.0, "num_speculative_tokens": 0},
        "greedy, ngram": {"temperature": 0.0},
        "seeded, off": {"temperature": 0.8, "top_p": 0.95, "seed": 1, "num_speculative_tokens": 0},
    }
    steps: dict[str, list[tuple[float, float]]] = {mode: [] for mode in modes}
    for _ in range(arguments.repeats):
        for mode, values in modes.items():
            params = SamplingParams(max_tokens=arguments.tokens, ignore_eos=True, **values)
            steps[mode].extend(measure(llm, params))
    shares = {}
    for mode, samples in steps.items():
        shares[mode] = {
            "step_ms": 1e3 * statistics.median(whole for whole, _ in samples),
            "outside_forward_ms": 1e3 * statistics.median(whole - inside for whole, inside in samples),
            "share": statistics.median((whole - inside) / whole for whole, inside in samples),
        }
        print(
            f"{mode:15s} step {shares[mode]['step_ms']:6.2f} ms, outside the forward pass "
            f"{shares[mode]['outside_forward_ms']:5.2f} ms ({100 * shares[mode]['share']:.1f}%)",
            file=sys.stderr,
        )
    report = {"modes": shares, **environment(vars(arguments))}
    if arguments.json != "-":
        write_json(report, arguments.json)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
