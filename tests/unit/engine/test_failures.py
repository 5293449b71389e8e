"""What breaks in one request of a batch ends that one, or its drafts, and nothing else, whoever drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.outputs import RequestOutput
from outrider.runner.model_runner import ModelRunner
from outrider.sampling_params import SamplingParams
from tests.toy import ToyModel
from tests.unit.engine.every_drafter import DISTRIBUTION, DRAFTERS, PREDICTION, VOCAB, blend
from tests.unit.engine.helpers import Composite, run, toy_engine

PROMPTS = [[1, 2, 1, 2], [7, 1, 2, 1], [3, 3, 3], [1, 2, 1, 2]]
BROKEN = 1
HOW: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "seeded": {"temperature": 0.9, "seed": 3}}


def breaks(context: tuple[int, ...], length: int) -> bool:
    return context[0] == 7 and len(context) > length


def broken_target(context: tuple[int, ...]) -> NDArray[np.float64]:
    return np.full(VOCAB, np.nan) if breaks(context, 12) else DISTRIBUTION(context)


def ids(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_nan_in_a_target_row_ends_only_that_request(name: str, how: str) -> None:
    """``run`` checks after every step that each block is owned, and in the end that all are free."""
    params = SamplingParams(max_tokens=24, prediction=PREDICTION, ignore_eos=True, **HOW[how])
    healthy = run(toy_engine(DISTRIBUTION, None, vocab_size=VOCAB), PROMPTS, params)
    outputs = run(toy_engine(broken_target, DRAFTERS[name](), vocab_size=VOCAB), PROMPTS, params)
    failed = outputs[BROKEN]
    assert failed.outputs[0].finish_reason == "error"
    assert "logits are not finite" in str(failed.error)
    got = failed.outputs[0].token_ids
    assert got == healthy[BROKEN].outputs[0].token_ids[: len(got)]
    for number in {0, 1, 2, 3} - {BROKEN}:
        assert outputs[number].error is None
        assert outputs[number].outputs[0].token_ids == healthy[number].outputs[0].token_ids
        assert outputs[number].metrics.speculation.active


def _draft_of_nan(shape: str) -> Drafter | Composite:
    def distribution(context: tuple[int, ...]) -> NDArray[np.float64]:
        return np.full(VOCAB, np.nan) if breaks(context, 9) else blend(context)

    model = DraftModelDrafter(
        ModelRunner(ToyModel(VOCAB, distribution), num_blocks=64, block_size=4),
        target_vocab_size=VOCAB,
        max_num_batched_tokens=64,
        tree_width=3 if "tree" in shape else 1,
        coupled="all" if "coupled" in shape else "seeded",
    )
    return Composite([], model) if shape == "composite" else model


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", ["chain", "tree", "coupled", "coupled tree", "composite"])
def test_a_nan_in_a_draft_row_costs_only_that_request_its_drafts(shape: str, how: str) -> None:
    params = SamplingParams(max_tokens=24, ignore_eos=True, **HOW[how])
    plain = run(toy_engine(DISTRIBUTION, None, vocab_size=VOCAB), PROMPTS, params)
    outputs = run(toy_engine(DISTRIBUTION, _draft_of_nan(shape), vocab_size=VOCAB), PROMPTS, params)
    assert ids(outputs) == ids(plain), "no token is lost by it, of this request or of another"
    assert all(output.error is None for output in outputs)
    said = [str(output.metrics.speculation) for output in outputs]
    assert said[BROKEN].startswith("inactive: drafter")
    assert "finite" in said[BROKEN]
    assert not any("inactive" in each for number, each in enumerate(said) if number != BROKEN)
    assert all(output.metrics.speculative_decoding.num_draft_tokens for output in outputs)


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_nan_while_sampling_without_a_seed_ends_only_that_request(name: str) -> None:
    params = SamplingParams(max_tokens=24, prediction=PREDICTION, ignore_eos=True)
    outputs = run(toy_engine(broken_target, DRAFTERS[name](), vocab_size=VOCAB), PROMPTS, params)
    assert [output.error is None for output in outputs] == [True, False, True, True]
    assert [len(each) for number, each in enumerate(ids(outputs)) if number != BROKEN] == [24, 24, 24]
