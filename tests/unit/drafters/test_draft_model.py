"""A draft model over toy targets: its cache catches up by itself, whatever happened since it last drafted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider import native
from outrider.drafters.base import DraftRequest, Proposal
from outrider.drafters.draft_chain import DraftChain
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.draft_passes import DraftPasses
from outrider.drafters.draft_rows import DraftRows
from outrider.outputs import RequestOutput, SpeculationStatus
from outrider.request import Request
from outrider.runner.model_runner import ModelRunner
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams
from tests.toy import Distribution, ToyModel, random_table
from tests.unit.engine.helpers import GREEDY, KSchedule, drain, recorded, run, toy_engine

VOCAB = 9
TARGET = random_table(VOCAB, seed=3, order=64, sharpness=2.0)
OTHER = random_table(VOCAB, seed=4, order=64, sharpness=2.0)
PROMPTS = [[1], [2, 3, 4, 5, 6, 7, 8], [4] * 11, [0, 1]]


def drafter_over(
    distribution: Distribution,
    *,
    vocab_size: int = VOCAB,
    num_blocks: int = 64,
    max_model_len: int = 4096,
    **settings: Any,
) -> DraftModelDrafter:
    runner = ModelRunner(
        ToyModel(vocab_size, distribution, max_model_len=max_model_len), num_blocks=num_blocks, block_size=4
    )
    settings.setdefault("max_num_batched_tokens", 512)
    return DraftModelDrafter(runner, target_vocab_size=VOCAB, **settings)


def ids(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=3, max_tokens=300), SamplingParams(max_tokens=300)])
def test_a_draft_equal_to_the_target_is_always_accepted(params: SamplingParams) -> None:
    params = SamplingParams(**{**params.model_dump(), "max_tokens": 300})
    k = KSchedule(lambda request: (4, 4, 4, 0, 0, 1, 4, 2, 0)[request.num_output_tokens // 7 % 9])
    drafter = drafter_over(TARGET, num_blocks=128)
    engine = toy_engine(TARGET, drafter, vocab_size=VOCAB, k=k, max_model_len=400, num_blocks=128)
    (output,) = run(engine, [[1, 2, 3]], params)
    stats = output.metrics.speculative_decoding
    assert len(output.outputs[0].token_ids) == 300
    assert 0 in stats.per_step_drafted
    assert 4 in stats.per_step_drafted
    assert stats.draft_acceptance_rate == 1.0, f"{stats.num_accepted_draft_tokens} of {stats.num_draft_tokens}"
    drafter.check_integrity()


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 3}, {"num_blocks": 6}, {"max_model_len": 12}])
@pytest.mark.parametrize(
    "params",
    [GREEDY, SamplingParams(seed=1, max_tokens=24), SamplingParams(seed=9, temperature=0.6, top_p=0.9, max_tokens=24)],
)
def test_any_draft_leaves_greedy_and_seeded_output_as_it_is(settings: dict[str, Any], params: SamplingParams) -> None:
    plain = run(toy_engine(TARGET, None, vocab_size=VOCAB), PROMPTS, params)
    drafter = drafter_over(OTHER, **settings)
    engine = toy_engine(TARGET, drafter, vocab_size=VOCAB, k=3)
    drafted = run(engine, PROMPTS, params)
    assert ids(drafted) == ids(plain)
    assert sum(output.metrics.speculative_decoding.num_draft_tokens for output in drafted) > 0
    assert drafter._passes._runner.kv.num_free_blocks == drafter._passes._runner.kv.num_blocks


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=1, max_tokens=24)])
def test_preemption_with_a_draft_model_changes_nothing(params: SamplingParams) -> None:
    plain = run(toy_engine(TARGET, None, vocab_size=VOCAB), PROMPTS, params)
    engine = toy_engine(TARGET, drafter_over(OTHER), vocab_size=VOCAB, k=3, num_blocks=10)
    requests = [engine.add_request(str(i), prompt, params) for i, prompt in enumerate(PROMPTS)]
    drain(engine)
    assert sum(request.num_preemptions for request in requests) > 0
    assert [tuple(request.output_token_ids) for request in requests] == ids(plain)


def test_drafts_stop_quietly_at_the_end_of_the_drafts_own_context() -> None:
    drafter = drafter_over(TARGET, max_model_len=20)
    (output,) = run(toy_engine(TARGET, drafter, vocab_size=VOCAB, k=4), [[1] * 10], GREEDY)
    (plain,) = run(toy_engine(TARGET, None, vocab_size=VOCAB), [[1] * 10], GREEDY)
    assert output.outputs[0].token_ids == plain.outputs[0].token_ids
    assert output.metrics.speculative_decoding.draft_acceptance_rate == 1.0
    assert output.metrics.speculative_decoding.per_step_drafted[-1] == 0


@pytest.mark.parametrize("draft_vocab", [VOCAB - 2, VOCAB + 3])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=2, max_tokens=24), SamplingParams(max_tokens=24)])
def test_padded_vocabularies_never_leak_an_id(draft_vocab: int, params: SamplingParams) -> None:
    drafter = drafter_over(random_table(draft_vocab, seed=8), vocab_size=draft_vocab)
    engine = toy_engine(random_table(VOCAB - 2, seed=5), None, vocab_size=VOCAB - 2)
    plain = run(engine, [[1]], params)
    target = random_table(VOCAB - 2, seed=5)
    drafter = DraftModelDrafter(drafter._passes._runner, target_vocab_size=VOCAB - 2, max_num_batched_tokens=64)
    outputs = run(toy_engine(target, drafter, vocab_size=VOCAB - 2), [[1]], params)
    assert outputs[0].metrics.speculation == SpeculationStatus("draft_model")
    assert all(0 <= token < VOCAB - 2 for token in outputs[0].outputs[0].token_ids)
    if params.greedy or params.seed is not None:
        assert ids(outputs) == ids(plain)


def test_the_prompt_is_drafted_from_only_after_the_first_token() -> None:
    model = ToyModel(VOCAB, TARGET)
    runner = ModelRunner(model, num_blocks=16, block_size=4)
    drafter = DraftModelDrafter(runner, target_vocab_size=VOCAB, max_num_batched_tokens=64)
    engine = toy_engine(TARGET, drafter, vocab_size=VOCAB)
    request: Request = engine.add_request("r", [1, 2, 3], GREEDY)
    engine.step()
    assert request.num_output_tokens == 1
    assert model.num_passes == 0, "the first token must not wait for the draft"


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=2, max_tokens=24), SamplingParams(max_tokens=24)])
def test_a_trimmed_draft_proposes_only_its_own_tokens_and_changes_nothing(params: SamplingParams) -> None:
    kept = [1, 4, 5, 8]

    def trimmed(context: tuple[int, ...]) -> NDArray[np.float64]:
        probs = TARGET(context)[kept]
        return np.asarray(probs / probs.sum())

    drafter = drafter_over(trimmed, vocab_size=len(kept), token_ids=kept)
    proposed: list[int] = []
    propose = drafter.propose

    def recording(batch: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = propose(batch)
        proposed.extend(token for proposal in proposals for token in proposal.token_ids)
        return proposals

    drafter.propose = recording  # type: ignore[method-assign]
    outputs = run(toy_engine(TARGET, drafter, vocab_size=VOCAB), PROMPTS, params)
    assert set(proposed) == set(kept)
    assert outputs[0].metrics.speculation == SpeculationStatus("draft_model")
    assert sum(o.metrics.speculative_decoding.num_accepted_draft_tokens for o in outputs) > 0
    if params.greedy or params.seed is not None:
        assert ids(outputs) == ids(run(toy_engine(TARGET, None, vocab_size=VOCAB), PROMPTS, params))


LOOPING = random_table(VOCAB, seed=12, order=1, sharpness=6.0)
"""Says the same again and again, mostly."""


@pytest.mark.skipif(not native.available(), reason="the native library is not built")
@pytest.mark.parametrize("settings", [{}, {"num_blocks": 12}, {"max_model_len": 30}], ids=["", "few blocks", "short"])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=2, max_tokens=24), SamplingParams(max_tokens=24)])
def test_what_is_looked_up_saves_passes_and_changes_no_draft(params: SamplingParams, settings: dict[str, Any]) -> None:
    params = SamplingParams(**{**params.model_dump(), "max_tokens": 40})
    drafted, passes = [], []
    for looks_up in (False, True):
        model = ToyModel(VOCAB, LOOPING, max_model_len=settings.get("max_model_len", 4096))
        runner = ModelRunner(model, num_blocks=settings.get("num_blocks", 64), block_size=4)
        drafter = DraftModelDrafter(runner, target_vocab_size=VOCAB, max_num_batched_tokens=64)
        if not looks_up:
            drafter._texts = None
        seen = recorded(drafter)
        engine = toy_engine(LOOPING, drafter, vocab_size=VOCAB, k=6)
        outputs = run(engine, [[1, 2, 3], [4]], params)
        distributions = [tuple(row.tolist() for row in proposal.probs or ()) for _, proposal in seen]
        drafted.append((ids(outputs), [proposal.token_ids for _, proposal in seen], distributions))
        passes.append(model.num_passes)
        drafter.check_integrity()
        assert runner.kv.num_free_blocks == runner.kv.num_blocks
    assert drafted[0] == drafted[1]
    assert passes[1] < passes[0]


def test_guesses_without_room_are_left_out_and_the_chain_goes_on() -> None:
    """Room for a context of 10 tokens and two drafts, but not for guesses beside them."""
    runner = ModelRunner(ToyModel(VOCAB, LOOPING), num_blocks=3, block_size=4)
    passes = DraftPasses(runner, 64)
    context = [1, 2, 3] * 3 + [1]
    assert passes.begin("r", context) == 0
    assert passes.reserve("r", len(context))
    request = Request("r", tuple(context), GREEDY, 0, 100)
    entry = DraftRequest(request, 5, KeyedNoise(0), RequestSampler(GREEDY, context, vocab_size=VOCAB))
    rows = DraftRows(np.arange(VOCAB), VOCAB)
    chain = DraftChain(entry, rows, True, len(context), look_up=lambda tokens, most: [1] * min(most, 2))
    passes.grow([chain], [context])
    assert len(chain.token_ids) == 3
