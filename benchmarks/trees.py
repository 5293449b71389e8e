"""Trees of drafts against chains and none: ``python benchmarks/trees.py [--model M --draft-model D]``.

Every arm drafts K tokens per step with the same draft model: a chain (``tree_width`` 1) or trees of K nodes. Without
``--draft-model`` the draft is the target's own first ``--layers`` layers. In each round every arm answers every prompt,
greedy and sampled, the order of arms turning. An arm's ``ratio`` is its rate over that of ``off`` for the same prompt
in the same round: median and quartiles. ``tokens_per_pass`` is tokens per pass that decodes. Greedy answers must be the
same in every arm. Prints a table, ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.bench.paired import paired_ratio
from outrider.cli._report import environment, write_json
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.engine.engine import Engine, EngineLimits, TextTools
from outrider.models.loader.load import OpenModel, open_model
from outrider.models.native import NativeDecoder
from outrider.runner.model_runner import ModelRunner
from outrider.sampling_params import SamplingParams
from outrider.speculation.policy import FixedPolicy
from outrider.speculation.speculator import Speculator

PROMPTS = (
    "def quicksort(values):\n",
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,",
)
HOW: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 0.8}}
BLOCK_SIZE = 16
Key = tuple[int, int]
"""Round, and place of the prompt."""


@dataclass
class Arm:
    """One engine and what it did, by how tokens are chosen."""

    engine: Engine
    rates: dict[str, dict[Key, float]] = field(default_factory=lambda: {how: {} for how in HOW})
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(HOW, 0))
    passes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(HOW, 0))

    def answer(self, how: str, key: Key, token_ids: list[int], params: SamplingParams) -> tuple[int, ...]:
        """Run one request alone and keep its figures; the first token, which has no drafts, is not timed."""
        request = self.engine.add_request(f"{how} {key}", token_ids, params)
        while not request.num_output_tokens:
            self.engine.step()
        begin = time.perf_counter()
        passes = 0
        while self.engine.has_requests:
            self.engine.step()
            passes += 1
        made = request.num_output_tokens - 1
        self.rates[how][key] = made / (time.perf_counter() - begin)
        self.tokens[how] += made
        self.passes[how] += passes
        output = self.engine.take_output(request.request_id)
        if output.error is not None:
            raise SystemExit(output.error)
        return output.outputs[0].token_ids


def decoder(opened: OpenModel, quantization: str | None = None, layers: int | None = None) -> NativeDecoder:
    """The model, or its first ``layers`` layers, on the native kernels."""
    weights = opened.packed_weights() if quantization is None else opened.packed_weights(quantization)
    config = opened.config if layers is None else replace(opened.config, num_layers=layers)
    return NativeDecoder(config, weights)


def arm(opened: OpenModel, target: NativeDecoder, draft: NativeDecoder | None, width: int, k: int, length: int) -> Arm:
    """An engine over shared weights, with caches of its own."""
    blocks = -(-length // BLOCK_SIZE) + 2
    drafter: Drafter | None = None
    if draft is not None:
        runner = ModelRunner(draft, num_blocks=blocks + k, block_size=BLOCK_SIZE)
        size = opened.config.vocab_size
        drafter = DraftModelDrafter(runner, target_vocab_size=size, max_num_batched_tokens=512, tree_width=width)
    runner = ModelRunner(target, num_blocks=blocks + k, block_size=BLOCK_SIZE)
    return Arm(
        Engine(
            runner,
            Speculator((), drafter, FixedPolicy(k)),
            TextTools(opened.tokenizer.stream),
            EngineLimits(length),
            seed=0,
        )
    )


def main() -> int:
    """Measure, print, write; returns 1 if an arm changed a greedy token."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft-model", help="instead of the target's first layers")
    parser.add_argument("--draft-quantization", help="int8 or int4")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--widths", default="1,2,4,8")
    parser.add_argument("-k", default="4,8", help="drafted tokens per step, comma-separated")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", default="-", help="write the result here too")
    arguments = parser.parse_args()
    opened = open_model(arguments.model)
    target = decoder(opened)
    if arguments.draft_model is None:
        draft = decoder(opened, arguments.draft_quantization, arguments.layers)
    else:
        other = open_model(arguments.draft_model)
        if opened.tokenizer.vocabulary_difference(other.tokenizer) is not None:
            raise SystemExit(f"draft model {other.name!r} has another vocabulary than {opened.name!r}; choose another")
        draft = decoder(other, arguments.draft_quantization)
    asked = [opened.tokenizer.encode(prompt) for prompt in PROMPTS]
    length = max(map(len, asked)) + arguments.tokens + 16
    arms = {"off": arm(opened, target, None, 1, 0, length)}
    for k in map(int, arguments.k.split(",")):
        for width in map(int, arguments.widths.split(",")):
            arms[f"K {k}, width {width}"] = arm(opened, target, draft, width, k, length)
    identical = True
    for turn in range(arguments.rounds + 1):  # the first is for warming up
        names = list(arms)[turn % len(arms) :] + list(arms)[: turn % len(arms)]
        for place, token_ids in enumerate(asked):
            for how, settings in HOW.items():
                params = SamplingParams(max_tokens=arguments.tokens, ignore_eos=True, **settings)
                answers = {name: arms[name].answer(how, (turn, place), token_ids, params) for name in names}
                identical &= how != "greedy" or len(set(answers.values())) == 1
        print(f"round {turn} of {arguments.rounds}", file=sys.stderr, flush=True)
        if turn == 0:
            for each in arms.values():
                each.rates = {how: {} for how in HOW}
    figures: dict[str, dict[str, Any]] = {}
    for name, each in arms.items():
        figures[name] = {}
        for how in HOW:
            ratio = paired_ratio(each.rates[how], arms["off"].rates[how])
            figures[name][how] = {
                "tokens_per_pass": each.tokens[how] / each.passes[how],
                "tokens_per_s": statistics.median(each.rates[how].values()),
                "ratio": None if ratio is None else ratio.to_dict(),
            }
        print(
            f"{name:16s} "
            + " | ".join(
                f"{how} {figure['tokens_per_pass']:.2f} tokens per pass, {figure['ratio']['median']:.2f} x off"
                for how, figure in figures[name].items()
            ),
            file=sys.stderr,
        )
    report = {"arms": figures, "identical": identical, **environment(vars(arguments))}
    if arguments.json != "-":
        write_json(report, arguments.json)
    print(json.dumps(report))
    return 0 if identical else 1


if __name__ == "__main__":
    raise SystemExit(main())
