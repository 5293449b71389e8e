"""Speculation chosen by cost against none and against fixed choices: ``python benchmarks/never_slower.py``.

Three workloads: *copy* (a table to be repeated), *chat* (questions), *random* (random tokens to go on from), greedy,
each at several concurrencies. Per cell every arm runs once a round, the order turning; an arm's figure is the median
over rounds of its rate over that of ``off`` in the same round. All requests of a cell arrive at once and run to the
same length; their prompts are in the prefix cache by then, so decoding is what is timed. No arm drafts from earlier
outputs.

``idle`` is the adaptive engine over a cost table in which no draft can pay: all of the machinery and K = 0 throughout.
Prints a table, ends with one JSON line.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from outrider import LLM, SamplingParams
from outrider.bench.paired import quartiles
from outrider.cli._report import environment
from outrider.drafters.composite import CompositeDrafter
from outrider.scheduler.adaptive import AdaptiveSpeculation
from outrider.scheduler.costs import PassCosts

NAMES = ("Moreau", "Ferreira", "Nowak", "Lindqvist", "Rossi", "Keller", "Jansen", "Novak", "Costa", "Weber", "Dubois")
TOWNS = ("Lyon", "Porto", "Gdansk", "Uppsala", "Parma", "Basel", "Utrecht", "Brno", "Braga", "Ulm", "Lille")
QUESTIONS = (
    "Explain how a sailing boat can move against the wind.",
    "Write a short letter to a neighbour about noise in the evening.",
    "What are three good reasons to learn a second language?",
    "Describe how bread is baked, step by step.",
    "Why is the sky blue? Explain it to a child.",
    "Compare trains and planes for a journey of 600 kilometres.",
    "Write a short story about a lost umbrella.",
    "How does a refrigerator keep food cold?",
    "Give advice to someone who begins to run.",
    "What is inflation, and who gains from it?",
    "Plan a weekend in a small town by the sea.",
    "How do bees find their way home?",
    "Write a poem about the first day of winter.",
    "Explain the difference between a virus and a bacterium.",
    "What should one check before buying a used bicycle?",
    "How is paper made from wood?",
)
WORKLOADS = ("copy", "chat", "random")


def prompts(llm: LLM, workload: str, count: int, seed: int) -> list[list[int]]:
    """``count`` prompts of one workload; another ``seed`` gives others."""
    chance = random.Random(f"{workload} {seed}")
    if workload == "random":
        return [[chance.randrange(200, llm.engine.vocab_size - 200) for _ in range(64)] for _ in range(count)]
    if workload == "chat":
        asked = chance.sample(QUESTIONS, count)
        return [llm.chat_prompt([{"role": "user", "content": question}]) for question in asked]
    texts = []
    for _ in range(count):
        rows = [
            f"{1000 + i},{chance.choice(NAMES)},{chance.choice(TOWNS)},{chance.randrange(10000) / 100}"
            for i in range(8)
        ]
        table = "\n".join(["id,name,town,amount", *rows])
        texts.append(f"The table:\n{table}\n\nThe same table, repeated without any change:\nid,name,town,amount\n")
    return [llm.tokenizer.encode(text) for text in texts]


def decode_rate(llm: LLM, asked: list[list[int]], tokens: int) -> tuple[float, list[list[int]], Any]:
    """Tokens per second of all requests together; the tokens; the first request's statistics."""
    llm.generate(asked, SamplingParams(temperature=0.0, max_tokens=1))
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    requests = [llm.engine.add_request(f"cell-{i}", prompt, params) for i, prompt in enumerate(asked)]
    begin = time.perf_counter()
    while llm.engine.has_requests:
        llm.engine.step()
    seconds = time.perf_counter() - begin
    made = sum(request.num_output_tokens for request in requests)
    outputs = [llm.engine.take_output(request.request_id) for request in requests]
    if any(output.error for output in outputs):
        raise SystemExit(next(output.error for output in outputs if output.error))
    stats = outputs[0].metrics.speculative_decoding
    return made / seconds, [list(output.outputs[0].token_ids) for output in outputs], stats


def load(model: str, speculative: dict[str, Any], draft: dict[str, Any]) -> LLM:
    """An engine for one arm."""
    drafting = speculative.get("method") in ("auto", "draft_model", "composite")
    keys = {**speculative, **(draft if drafting else {})}
    if keys.get("method") != "off":
        keys["suffix_cache_tokens"] = 0
    return LLM(model, speculative_config=keys, max_num_seqs=16, max_model_len=2048)


def main() -> int:
    """Measure, print, write; returns 1 if an arm changed a token."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft-model", help="for the arms auto and draft_model")
    parser.add_argument("--concurrency", default="1,2,4,8,16")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument(
        "--fixed", default="ngram:3,ngram:7,suffix:3,suffix:7,suffix:15", help="method:K, comma-separated"
    )
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", default="-", help="write the result here too")
    arguments = parser.parse_args()
    draft = {"model": arguments.draft_model, "quantization": "int4", "draft_vocab_size": 32768}
    draft = draft if arguments.draft_model else {}
    arms: dict[str, dict[str, Any]] = {
        "off": {"method": "off"},
        "auto": {"method": "auto"},
        "idle": {"method": "suffix"},
    }
    for text in filter(None, arguments.fixed.split(",")):
        method, _, k = text.partition(":")
        arms[text] = {"method": method, "num_speculative_tokens": int(k), "adaptive": False}
    engines = {name: load(arguments.model, keys, draft) for name, keys in arms.items()}
    idle = engines["idle"].engine
    idle.controller = AdaptiveSpeculation(PassCosts({1: 1e-3, 64: 64.0}), num_speculative_tokens=15)
    idle.scheduler._controller = idle.controller
    if isinstance(idle.drafter, CompositeDrafter):
        idle.drafter.planner = idle.controller
    cells, identical = [], True
    for workload in arguments.workloads.split(","):
        for concurrency in map(int, arguments.concurrency.split(",")):
            ratios: dict[str, list[float]] = {name: [] for name in arms}
            rates: dict[str, list[float]] = {name: [] for name in arms}
            trace: list[int] = []
            gains: tuple[float | None, float | None] = None, None
            for turn in range(arguments.rounds):
                asked = prompts(engines["off"], workload, concurrency, turn)
                order = list(arms)[turn % len(arms) :] + list(arms)[: turn % len(arms)]
                made = {name: decode_rate(engines[name], asked, arguments.tokens) for name in order}
                for name, (rate, tokens, stats) in made.items():
                    rates[name].append(rate)
                    ratios[name].append(rate / made["off"][0])
                    identical &= tokens == made["off"][1]
                    if name == "auto":
                        trace, gains = stats.per_step_drafted, (stats.estimated_gain, stats.realised_gain)
            gc.collect()
            medians = {name: statistics.median(values) for name, values in ratios.items()}
            fixed = {name: value for name, value in medians.items() if name not in ("off", "auto", "idle")}
            best = max(fixed, key=lambda name: fixed[name]) if fixed else "off"
            to_best = [a / max(b, 1.0) for a, b in zip(ratios["auto"], ratios[best], strict=True)]
            cells.append(
                {
                    "workload": workload,
                    "concurrency": concurrency,
                    "off_tokens_per_s": statistics.median(rates["off"]),
                    "ratio_to_off": {n: {"median": medians[n], "quartiles": quartiles(ratios[n])} for n in arms},
                    "best_fixed": best,
                    "auto_over_best_or_off": statistics.median(to_best),
                    "auto_k_trace": trace,
                    "auto_estimated_and_realised_gain": gains,
                }
            )
            print(
                f"{workload:7s} x{concurrency:<3d} off {statistics.median(rates['off']):7.1f} tok/s | auto "
                f"{medians['auto']:.2f} idle {medians['idle']:.3f} | best fixed {best} {medians[best]:.2f} | auto/best "
                f"{statistics.median(to_best):.2f} | " + " ".join(f"{n} {v:.2f}" for n, v in fixed.items()),
                file=sys.stderr,
                flush=True,
            )
    report = {"cells": cells, "identical": identical, **environment(vars(arguments))}
    if arguments.json != "-":
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report))
    return 0 if identical else 1


if __name__ == "__main__":
    raise SystemExit(main())
