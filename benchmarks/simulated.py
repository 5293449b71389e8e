"""The decisions of never_slower.py under a clock without noise: ``python -m benchmarks.simulated``.

Scheduler, drafters and policy are the real ones and the answers are the target's own, made once. But the target's
passes are not run again: a pass gives the logits that lead to the known answer, and moves a simulated clock by what the
cost table says that was measured when the engine started (``--noise`` lengthens or shortens each at random). A draft
model is run, and moves the clock by its own table. So what is compared is how well drafter and K were chosen, on any
machine, however busy; what the choosing itself takes, and whether tables are right, only never_slower.py can tell.
Prints a table, ends with one JSON line.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.never_slower import WORKLOADS, arms_of, load, prompts

import outrider.engine.step as engine_step
from outrider import LLM, SamplingParams
from outrider.cli._report import environment, write_json
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.models.logits import ArrayLogits, Logits
from outrider.runner.model_runner import Chunk, ForwardOutput, ModelRunner
from outrider.speculation.adaptive import AdaptivePolicy
from outrider.speculation.costs import PassCosts, PassLoad

PER_TOKEN = 4e-5
"""Seconds that judging and committing one row takes beside the pass."""


class Clock:
    """Stands in for the module ``time``."""

    now = 0.0

    def perf_counter(self) -> float:
        """Simulated seconds."""
        return self.now

    monotonic = perf_counter


@dataclass
class Tables:
    """What passes cost: the target's, and the draft model's if there is one."""

    target: PassCosts
    draft: PassCosts | None


class Scripted:
    """An engine whose target says what it is told, while the clock runs by the tables."""

    def __init__(self, llm: LLM, tables: Tables, clock: Clock, noise: float) -> None:
        self.engine = llm.engine
        self.answers: dict[str, list[int]] = {}
        self._tables, self._clock, self._noise = tables, clock, noise
        self._chance = random.Random(7)
        self._rows = np.zeros((0, llm.engine.vocab_size), np.float32)
        self.engine.runner.forward = self._forward  # type: ignore[method-assign]
        judge = self.engine.verify

        def verify(request: Any, proposal: Any, *rest: Any, **keys: Any) -> Any:
            clock.now += PER_TOKEN * (1 + len(proposal))
            return judge(request, proposal, *rest, **keys)

        self.engine.verify = verify
        speculator = self.engine.speculator
        speculator._clock = clock.perf_counter
        if tables.draft is not None and isinstance(speculator.model, DraftModelDrafter):
            self._run_draft(speculator.model._passes._runner, tables.draft)
        if isinstance(speculator.policy, AdaptivePolicy):
            speculator.policy.passes = copy.deepcopy(tables.target)

    def _run_draft(self, runner: ModelRunner, table: PassCosts) -> None:
        forward = runner.forward

        def timed(chunks: Sequence[Chunk], capture: Sequence[int] = ()) -> ForwardOutput:
            self._spend(table, chunks)
            return forward(chunks, capture)

        runner.forward = timed  # type: ignore[method-assign]

    def _spend(self, table: PassCosts, chunks: Sequence[Chunk]) -> float:
        """Let the time of a pass go by; the seconds."""
        load = PassLoad.of((chunk.start, len(chunk.token_ids)) for chunk in chunks)
        seconds = table.seconds(load) * self._chance.lognormvariate(0.0, self._noise)
        self._clock.now += seconds
        return seconds

    def _forward(self, chunks: Sequence[Chunk], capture: Sequence[int] = ()) -> ForwardOutput:
        seconds = self._spend(self._tables.target, chunks)
        wanted = sum(chunk.num_logits for chunk in chunks)
        if wanted > len(self._rows):
            self._rows = np.zeros((wanted, self.engine.vocab_size), np.float32)
        logits, first = list[Logits](), 0
        for chunk in chunks:
            rows = self._rows[first : first + chunk.num_logits]
            rows[:] = 0.0
            first += chunk.num_logits
            known = self.answers[chunk.request_id]
            after = chunk.start + len(chunk.token_ids) - chunk.num_logits + 1
            for place, row in enumerate(rows, after):
                row[known[place] if place < len(known) else 0] = 1.0
            logits.append(ArrayLogits(rows))
        return ForwardOutput(logits, [None] * len(chunks), seconds)

    def run(self, asked: list[list[int]], answers: list[list[int]]) -> tuple[float, Any]:
        """Tokens per simulated second of all requests together, their prompts cached; the first one's statistics."""
        names = [f"cell-{place}" for place in range(len(asked))]
        for name, prompt, answer in zip(names, asked, answers, strict=True):
            self.answers[name] = [*prompt, *answer]
        for tokens in (1, len(answers[0])):
            params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
            for name, prompt in zip(names, asked, strict=True):
                self.engine.add_request(name, prompt, params)
            begin = self._clock.now
            while self.engine.has_requests:
                self.engine.step()
            outputs = [self.engine.take_output(name) for name in names]
        for output, answer in zip(outputs, answers, strict=True):
            if list(output.outputs[0].token_ids) != answer:
                raise SystemExit(f"an answer is not the target's: {output.error or output.outputs[0].text!r}")
        rate = sum(map(len, answers)) / (self._clock.now - begin)
        return rate, outputs[0].metrics.speculative_decoding


def measured(llm: LLM) -> Tables:
    """The tables that the adaptive engine made when it started."""
    policy = llm.engine.speculator.policy
    if not isinstance(policy, AdaptivePolicy):
        raise SystemExit("the arm 'auto' does not choose by cost here")
    draft = None if policy.model is None else policy.model.costs.passes
    return Tables(copy.deepcopy(policy.passes), copy.deepcopy(draft))


def main() -> int:
    """Simulate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft-model", help="for the arms auto and draft_model")
    parser.add_argument("--concurrency", default="1,2,4,8,16")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--fixed", default="ngram:3,suffix:3,suffix:7,suffix:15", help="method:K, comma-separated")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3, help="sets of prompts")
    parser.add_argument("--noise", type=float, default=0.1, help="standard deviation of the logarithm of a pass's time")
    parser.add_argument("--json", default="-", help="write the result here too")
    arguments = parser.parse_args()
    arms = arms_of(arguments.draft_model, arguments.fixed)
    del arms["idle"]
    engines = {name: load(arguments.model, keys) for name, keys in arms.items()}
    tables, clock = measured(engines["auto"]), Clock()
    answers: dict[tuple[str, int, int], tuple[list[list[int]], list[list[int]]]] = {}
    said = SamplingParams(temperature=0.0, max_tokens=arguments.tokens, ignore_eos=True)
    cells = [(w, int(n)) for w in arguments.workloads.split(",") for n in arguments.concurrency.split(",")]
    for workload, concurrency in cells:
        for turn in range(arguments.rounds):
            asked = prompts(engines["off"], workload, concurrency, turn)
            made = engines["off"].generate(asked, said)
            answers[workload, concurrency, turn] = asked, [list(each.outputs[0].token_ids) for each in made]
    vars(engine_step)["time"] = clock
    scripted = {name: Scripted(llm, tables, clock, arguments.noise) for name, llm in engines.items()}
    report: dict[str, Any] = {"cells": [], "pass_ms": {n: 1e3 * t for n, t in tables.target.table().items()}}
    for workload, concurrency in cells:
        rates: dict[str, list[float]] = {name: [] for name in arms}
        trace: list[int] = []
        for turn in range(arguments.rounds):
            for name, engine in scripted.items():
                rate, stats = engine.run(*answers[workload, concurrency, turn])
                rates[name].append(rate)
                trace = stats.per_step_drafted if name == "auto" else trace
        to_off = {
            name: statistics.mean(a / b for a, b in zip(each, rates["off"], strict=True))
            for name, each in rates.items()
        }
        best = max((name for name in arms if name != "auto"), key=lambda name: to_off[name])
        report["cells"].append(
            {
                "workload": workload,
                "concurrency": concurrency,
                "off_tokens_per_s": statistics.mean(rates["off"]),
                "ratio_to_off": to_off,
                "best_fixed_or_off": best,
                "auto_over_best": to_off["auto"] / to_off[best],
                "auto_k_trace": trace,
            }
        )
        others = " ".join(f"{name} {ratio:.2f}" for name, ratio in to_off.items() if name not in ("off", "auto"))
        share = to_off["auto"] / to_off[best]
        print(
            f"{workload:7s} x{concurrency:<3d} auto {to_off['auto']:.2f}, {share:.3f} of the best ({best}) | {others}",
            file=sys.stderr,
            flush=True,
        )
    report |= environment(vars(arguments))
    if arguments.json != "-":
        write_json(report, arguments.json)
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
