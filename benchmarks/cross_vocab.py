"""Two small models of different vocabularies, drafting for each other: ``python -m benchmarks.cross_vocab``.

Greedy and seeded at temperature 0.8, one request at a time. Every prompt runs with speculation off and with each arm
in turn, the order turning with every prompt; an arm's ratio is the median over prompts and rounds of its decode rate
over that of ``off`` for the same prompt. ``tli`` and ``slem`` draft K tokens in every step, ``auto`` (text that was
seen before and the other model) as many as pay. All arms must give the same tokens. A table on stderr; the last line
of stdout is the result as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks.retrieval import rate

from outrider import LLM, SamplingParams
from outrider.bench.paired import paired_ratio
from outrider.cli._report import environment, write_json

PROMPTS = (
    "The capital of France is Paris. The capital of Italy is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea, there lived an old fisherman who",
    "日本の首都は東京です。フランスの首都は",
    "1. Wash the potatoes.\n2. Peel them.\n3.",
)


def arms(draft: str, k: int) -> dict[str, dict[str, Any]]:
    """Speculation settings by arm."""
    crossed = {"method": "cross_vocab", "model": draft, "num_speculative_tokens": k, "adaptive": False}
    return {
        "off": {"method": "off"},
        "tli": {**crossed, "cross_vocab_algorithm": "tli"},
        "slem": {**crossed, "cross_vocab_algorithm": "slem"},
        "auto": {"method": "auto", "model": draft, "suffix_cache_tokens": 0},
    }


def main() -> int:
    """Measure, print, write; returns 1 if an arm changed a token."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2-135m-instruct,gemma-3-270m", help="two; each drafts for the other")
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", default="-", help="write the result here too")
    arguments = parser.parse_args()
    first, second = arguments.models.split(",")
    distributions = {
        "greedy": SamplingParams(temperature=0.0, max_tokens=arguments.tokens, ignore_eos=True),
        "seeded": SamplingParams(temperature=0.8, seed=7, max_tokens=arguments.tokens, ignore_eos=True),
    }
    cells, identical = [], True
    for target, draft in ((first, second), (second, first)):
        engines = {
            name: LLM(target, speculative_config=keys, max_model_len=512, max_num_seqs=2, prefix_caching=False)
            for name, keys in arms(draft, arguments.k).items()
        }
        for distribution, params in distributions.items():
            rates: dict[str, dict[tuple[int, int], float]] = {name: {} for name in engines}
            counts = {name: [0, 0, 0] for name in engines}
            for turn in range(arguments.rounds):
                for number, prompt in enumerate(PROMPTS):
                    shift = (turn + number) % len(engines)
                    order = [*engines][shift:] + [*engines][:shift]
                    made = {name: engines[name].generate(prompt, params)[0] for name in order}
                    for name, output in made.items():
                        identical &= output.outputs[0].token_ids == made["off"].outputs[0].token_ids
                        rates[name][turn, number] = rate(output)
                        stats = output.metrics.speculative_decoding
                        steps = (stats.num_steps, stats.num_draft_tokens, stats.num_accepted_draft_tokens)
                        counts[name] = [a + b for a, b in zip(counts[name], steps, strict=True)]
            for name, (passes, drafted, accepted) in counts.items():
                if name == "off":
                    continue
                ratio = paired_ratio(rates[name], rates["off"])
                cell = {
                    "target": target,
                    "draft": draft,
                    "distribution": distribution,
                    "arm": name,
                    "ratio_to_off": None if ratio is None else ratio.to_dict(),
                    "tokens_per_pass": 1 + accepted / passes,
                    "draft_acceptance_rate": accepted / max(1, drafted),
                }
                cells.append(cell)
                print(
                    f"{target} by {draft}, {distribution:6s} {name:5s} "
                    + (
                        "no ratio"
                        if ratio is None
                        else f"{ratio.median:.2f}x off ({ratio.low:.2f} to {ratio.high:.2f})"
                    )
                    + f", {cell['tokens_per_pass']:.2f} tokens per pass, {cell['draft_acceptance_rate']:.0%} accepted",
                    file=sys.stderr,
                    flush=True,
                )
    report = {"cells": cells, "identical": identical, **environment(vars(arguments))}
    if arguments.json != "-":
        write_json(report, arguments.json)
    print(json.dumps(report))
    return 0 if identical else 1


if __name__ == "__main__":
    raise SystemExit(main())
