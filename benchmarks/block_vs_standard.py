"""Drafts accepted by block and by standard verification: ``python benchmarks/block_vs_standard.py [--tokens N]``.

The target samples a text of N tokens, and at every place a draft model draws K tokens to follow, which both verifiers
judge with the same noise: ``accepted`` is what they took on average. ``expected`` leaves the luck of accepting out.
With P/Q the ratios at the drafts, a block accepts i of them with probability p_i = min(1, p_(i-1) P/Q), on average over
the drafts behind (Sun et al. 2024, arXiv 2403.10444), standard verification with the product of min(1, P/Q), which is
at most that. The draft is ``--draft-model``, or else the target's own first ``--layers`` layers.

The last line of stdout is the result as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from outrider.cli._report import environment, write_json
from outrider.models.loader.load import OpenModel, open_model
from outrider.models.native import NativeDecoder
from outrider.runner.model_runner import Chunk, ModelRunner
from outrider.sampling.noise import Noise, Purpose, Weights
from outrider.sampling.probabilities import probabilities
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams
from outrider.verification.base import Proposal
from outrider.verification.block import verify_block
from outrider.verification.standard import verify_standard

PROMPTS = (
    "Once upon a time, in a village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "The history of the lighthouse begins",
    "Dear Sir or Madam,\n\n",
)
BLOCK_SIZE = 16


class Reader:
    """One model and the tokens that its cache holds; ``distributions`` reads what is new and drops what was left."""

    def __init__(self, model: NativeDecoder, params: SamplingParams, max_tokens: int) -> None:
        self._runner = ModelRunner(model, num_blocks=-(-max_tokens // BLOCK_SIZE) + 1, block_size=BLOCK_SIZE)
        if not self._runner.kv.allocate("text", max_tokens):
            raise SystemExit(f"the cache does not hold {max_tokens} tokens")
        self._params = params
        self._tokens: list[int] = []

    def distributions(self, tokens: Sequence[int], count: int) -> list[Weights]:
        """The distributions [vocab] after each of the last ``count`` of ``tokens``."""
        shared = 0
        while shared < min(len(tokens) - count, len(self._tokens)) and tokens[shared] == self._tokens[shared]:
            shared += 1
        chunk = Chunk("text", list(tokens[shared:]), shared, num_logits=count)
        (logits,) = self._runner.forward([chunk]).logits
        self._tokens = list(tokens)
        return [probabilities(logits.row(row), self._params) for row in range(count)]


@dataclass(frozen=True)
class Place:
    """What became of the drafts of one place, and what was to be expected of them."""

    block: int
    standard: int
    expected_block: float
    expected_standard: float


def judge(target: Reader, draft: Reader, text: list[int], num_drafts: int, noise: Noise) -> tuple[Place, int]:
    """Draft ``num_drafts`` tokens to follow ``text`` and judge them; and the target's own next token."""
    position, drafted, rows = len(text), list[int](), list[Weights]()
    for place in range(num_drafts):
        rows.append(draft.distributions([*text, *drafted], 1)[0])
        drafted.append(noise.draw(rows[-1], position + place, Purpose.DRAFT))
    distributions = target.distributions([*text, *drafted], num_drafts + 1)
    proposal = Proposal(tuple(drafted), tuple(rows))
    by_block, by_standard = (
        verify(proposal, lambda place: distributions[place], noise, position).num_accepted
        for verify in (verify_block, verify_standard)
    )
    in_block = alone = 1.0
    expected_block = expected_standard = 0.0
    for place, token_id in enumerate(drafted):
        ratio = float(distributions[place][token_id]) / float(rows[place][token_id])
        in_block, alone = min(1.0, in_block * ratio), alone * min(1.0, ratio)
        expected_block += in_block
        expected_standard += alone
    following = noise.draw(distributions[0], position, Purpose.TARGET)
    return Place(by_block, by_standard, expected_block, expected_standard), following


def models(arguments: argparse.Namespace) -> tuple[OpenModel, NativeDecoder, NativeDecoder]:
    """What was opened, the target, and the draft."""
    opened = open_model(arguments.model)
    weights = opened.packed_weights()
    target = NativeDecoder(opened.config, weights)
    if arguments.draft_model is None:
        few = replace(opened.config, num_layers=arguments.layers)
        return opened, target, NativeDecoder(few, weights)
    other = open_model(arguments.draft_model)
    if opened.tokenizer.vocabulary_difference(other.tokenizer) is not None:
        raise SystemExit(f"draft model {other.name!r} has another vocabulary than {opened.name!r}; choose another")
    if other.config.vocab_size != opened.config.vocab_size:
        raise SystemExit(f"draft model {other.name!r} pads its vocabulary otherwise than {opened.name!r} does")
    return opened, target, NativeDecoder(other.config, other.packed_weights())


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft-model", help="instead of the target's first layers")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="-", help="write the result here too")
    arguments = parser.parse_args()
    opened, *both = models(arguments)
    params = SamplingParams(temperature=arguments.temperature)
    each = -(-arguments.tokens // len(PROMPTS))
    places: list[Place] = []
    for number, prompt in enumerate(PROMPTS):
        text = opened.tokenizer.encode(prompt)
        target, draft = (Reader(model, params, len(text) + each + arguments.k + 1) for model in both)
        whole = KeyedNoise(arguments.seed + number)
        for _ in range(min(each, arguments.tokens - len(places))):
            place, token_id = judge(target, draft, text, arguments.k, whole.at_step(len(text)))
            places.append(place)
            text.append(token_id)
        print(f"{len(places)} places", file=sys.stderr, flush=True)
    means = {field.name: statistics.fmean(getattr(place, field.name) for place in places) for field in fields(Place)}
    report = {
        "places": len(places),
        "accepted": {"block": means["block"], "standard": means["standard"]},
        "expected": {"block": means["expected_block"], "standard": means["expected_standard"]},
        **environment(vars(arguments)),
    }
    for name in ("accepted", "expected"):
        print(f"{name} drafts per step: {report[name]}", file=sys.stderr)
    if arguments.json != "-":
        write_json(report, arguments.json)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
