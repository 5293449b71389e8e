"""Speculation chosen by cost against none and against fixed choices: ``python benchmarks/never_slower.py``.

Three workloads: *copy* (a table to be repeated), *chat* (questions), *random* (random tokens to go on from), greedy,
each at several concurrencies. All requests of a cell arrive at once and run to the same length; their prompts are in
the prefix cache by then, so decoding is what is timed. No arm drafts from earlier outputs.

The arms of a cell run *abreast*: the next step is always that of the arm that has made the smallest part of its tokens.
So whatever slows the machine for longer than a step slows all arms at the same place of their answers; an arm's time is
the sum of its steps. An arm's figure is the median over rounds of its rate over that of ``off`` in the same round.

``idle`` is the adaptive engine over a cost table in which no draft can pay: all of the machinery and K = 0 throughout.
As it takes the same steps as ``off``, the two are compared step by step: ``idle_steps`` is the median of those ratios.
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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider import LLM, SamplingParams
from outrider.bench.paired import quartiles
from outrider.cli._report import environment, write_json
from outrider.speculation.adaptive import AdaptivePolicy
from outrider.speculation.costs import PassCosts

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


@dataclass
class Run:
    """One arm's run of a cell: the seconds of each step, each request's tokens, the first request's statistics."""

    steps: list[float]
    tokens: list[list[int]]
    stats: Any

    @property
    def rate(self) -> float:
        """Tokens per second of all requests together."""
        return sum(map(len, self.tokens)) / sum(self.steps)


def run_abreast(engines: dict[str, LLM], order: Sequence[str], asked: list[list[int]], tokens: int) -> dict[str, Run]:
    """Every arm answers ``asked``, step by step in turn; ``order`` decides between arms that are equally far."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    requests, steps = {}, {name: list[float]() for name in order}
    for name in order:
        engines[name].generate(asked, SamplingParams(temperature=0.0, max_tokens=1))
        add = engines[name].engine.add_request
        requests[name] = [add(f"cell-{i}", prompt, params) for i, prompt in enumerate(asked)]
    gc.collect()
    made = dict.fromkeys(order, 0)
    while made:
        name = min(made, key=lambda each: made[each])
        begin = time.perf_counter()
        engines[name].engine.step()
        steps[name].append(time.perf_counter() - begin)
        made[name] = sum(request.num_output_tokens for request in requests[name])
        if not engines[name].engine.has_requests:
            del made[name]
    runs = {}
    for name in order:
        outputs = [engines[name].engine.take_output(request.request_id) for request in requests[name]]
        if any(output.error for output in outputs):
            raise SystemExit(next(output.error for output in outputs if output.error))
        answers = [list(output.outputs[0].token_ids) for output in outputs]
        runs[name] = Run(steps[name], answers, outputs[0].metrics.speculative_decoding)
    return runs


def arms_of(draft_model: str | None, fixed: str) -> dict[str, dict[str, Any]]:
    """Speculative settings of each arm: off, by cost, never, and ``fixed`` ones such as ``suffix:7,draft_model:4``."""
    draft = {"model": draft_model, "quantization": "int4", "draft_vocab_size": 32768} if draft_model else {}
    arms: dict[str, dict[str, Any]] = {
        "off": {"method": "off"},
        "auto": {"method": "auto", **draft},
        "idle": {"method": "suffix"},
    }
    for text in filter(None, fixed.split(",")):
        method, _, k = text.partition(":")
        keys = draft if method in ("draft_model", "composite") else {}
        arms[text] = {"method": method, "num_speculative_tokens": int(k), "adaptive": False, **keys}
    return arms


def load(model: str, speculative: dict[str, Any]) -> LLM:
    """An engine for one arm, which remembers no earlier outputs."""
    keys = dict(speculative) if speculative["method"] == "off" else {**speculative, "suffix_cache_tokens": 0}
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
    arms = arms_of(arguments.draft_model, arguments.fixed)
    engines = {name: load(arguments.model, keys) for name, keys in arms.items()}
    never = engines["idle"].engine
    never.speculator.policy = AdaptivePolicy(PassCosts({1: 1e-3, 64: 64.0}), num_speculative_tokens=15)
    cells, identical = [], True
    report: dict[str, Any] = {}
    for workload in arguments.workloads.split(","):
        for concurrency in map(int, arguments.concurrency.split(",")):
            ratios: dict[str, list[float]] = {name: [] for name in arms}
            rates: dict[str, list[float]] = {name: [] for name in arms}
            idle_steps: list[float] = []
            trace: list[int] = []
            gains: tuple[float | None, float | None] = None, None
            for turn in range(arguments.rounds):
                asked = prompts(engines["off"], workload, concurrency, turn)
                order = list(arms)[turn % len(arms) :] + list(arms)[: turn % len(arms)]
                runs = run_abreast(engines, order, asked, arguments.tokens)
                for name, run in runs.items():
                    rates[name].append(run.rate)
                    ratios[name].append(run.rate / runs["off"].rate)
                    identical &= run.tokens == runs["off"].tokens
                trace = runs["auto"].stats.per_step_drafted
                gains = runs["auto"].stats.estimated_gain, runs["auto"].stats.realised_gain
                idle_steps += [i / o for i, o in zip(runs["idle"].steps, runs["off"].steps, strict=True)]
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
                    "idle_steps": {"median": statistics.median(idle_steps), "quartiles": quartiles(idle_steps)},
                    "auto_k_trace": trace,
                    "auto_estimated_and_realised_gain": gains,
                }
            )
            report = {"cells": cells, "identical": identical, **environment(vars(arguments))}
            if arguments.json != "-":  # after each cell, since all of them may take an hour
                write_json(report, arguments.json)
            idle, others = statistics.median(idle_steps), " ".join(f"{n} {v:.2f}" for n, v in fixed.items())
            print(
                f"{workload:7s} x{concurrency:<3d} off {statistics.median(rates['off']):7.1f} tok/s | auto "
                f"{medians['auto']:.2f} idle step x{idle:.3f} | best fixed {best} {medians[best]:.2f} | auto/best "
                f"{statistics.median(to_best):.2f} | {others}",
                file=sys.stderr,
                flush=True,
            )
    print(json.dumps(report))
    return 0 if identical else 1


if __name__ == "__main__":
    raise SystemExit(main())
