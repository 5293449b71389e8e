"""What each sampling parameter costs on top of a greedy step: ``python -m benchmarks.sampling [--model M]``.

Steps over K + 1 rows whose drafts are all accepted, so that every row's distribution, draw and log-probabilities are
made: each arm drafts from its own answer, made before. The arms take turns. ``outside_ms`` is a step's median time
outside the forward pass, ``cost`` how much more of that there is than in a greedy step, over the median greedy step:
passes vary by more than what is looked for. The last line of stdout is the result as one JSON line.
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

PROMPT = "def quicksort(values):\n"
WARM = {"temperature": 0.8, "seed": 1}
ARMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy, logprobs 5": {"temperature": 0.0, "logprobs": 5},
    "temperature 0.8, seed": WARM,
    "+ top_p 0.95": {**WARM, "top_p": 0.95},
    "+ top_k 50": {**WARM, "top_k": 50},
    "+ min_p 0.05": {**WARM, "min_p": 0.05},
    "+ typical_p 0.9": {**WARM, "typical_p": 0.9},
    "+ repetition_penalty 1.1": {**WARM, "repetition_penalty": 1.1},
    "+ presence_penalty 0.5": {**WARM, "presence_penalty": 0.5},
    "+ frequency_penalty 0.5": {**WARM, "frequency_penalty": 0.5},
    "+ logit_bias": {**WARM, "logit_bias": {100: 1.0, 200: -1.0}},
    "+ min_tokens": {**WARM, "min_tokens": 10_000},
    "+ logprobs 5": {**WARM, "logprobs": 5},
    "+ top_p 0.95, logprobs 5": {**WARM, "top_p": 0.95, "logprobs": 5},
}


def params_of(arm: dict[str, Any], tokens: int, prediction: tuple[int, ...] | None) -> SamplingParams:
    """The arm's parameters; with a prediction its steps are speculative."""
    values = {**arm, "max_tokens": tokens, "ignore_eos": True}
    if "min_tokens" in arm:
        values["min_tokens"] = tokens
    return SamplingParams(**values, prediction=prediction, num_speculative_tokens=None if prediction else 0)


def steps(llm: LLM, params: SamplingParams, k: int) -> list[tuple[float, float]]:
    """(seconds, seconds outside the forward pass) of every step that drafted K tokens and had them all accepted."""
    return [
        (step.whole, step.whole - step.inside)
        for step in timed_steps(llm, PROMPT, params)
        if step.piece.sources.count("accepted") == k
    ]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("--tokens", type=int, default=49)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-k", type=int, default=3)
    parser.add_argument("--json", default="-", help="write the result here too")
    arguments = parser.parse_args()
    llm = LLM(
        arguments.model,
        speculative_config={"method": "prediction", "num_speculative_tokens": arguments.k, "adaptive": False},
        kv_cache_memory=256 << 20,
    )
    prompt = llm.tokenizer.encode(PROMPT)
    answers = {}
    for name, arm in ARMS.items():
        (output,) = llm.generate([prompt], params_of(arm, arguments.tokens, None))
        answers[name] = output.outputs[0].token_ids
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in ARMS}
    for turn in range(arguments.rounds):
        names = list(ARMS)[turn % len(ARMS) :] + list(ARMS)[: turn % len(ARMS)]
        for name in names:
            params = params_of(ARMS[name], arguments.tokens, answers[name])
            samples[name] += steps(llm, params, arguments.k)
    arms: dict[str, dict[str, float]] = {}
    for name, each in samples.items():
        step, outside = (1e3 * statistics.median(column) for column in zip(*each, strict=True))
        arms[name] = {"step_ms": step, "outside_ms": outside}
        arms[name]["cost"] = (outside - arms["greedy"]["outside_ms"]) / arms["greedy"]["step_ms"]
    for name, figures in arms.items():
        print(
            f"{name:26s} step {figures['step_ms']:7.2f} ms, outside the pass {figures['outside_ms']:6.2f} ms: "
            f"{100 * figures['cost']:+.1f}%",
            file=sys.stderr,
        )
    report = {"vocab_size": llm.engine.vocab_size, "arms": arms, **environment(vars(arguments))}
    if arguments.json != "-":
        write_json(report, arguments.json)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
