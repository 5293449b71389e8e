"""Details of tokens hold the distributions that the toy models are made of, and asking for them changes no bit."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import pytest

from outrider.drafters.base import DraftRequest, Proposal
from outrider.outputs import CompletionOutput, RequestOutput, TokenDetail
from outrider.sampling.probabilities import probabilities as probs_of
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling_params import SamplingParams
from tests.unit.engine.every_drafter import DISTRIBUTION, DRAFTERS, PROMPTS, VOCAB, blend, draft_model
from tests.unit.engine.helpers import GREEDY, ScriptedDrafter, oracle, run, toy_engine
from tests.unit.engine.test_parameters import ENDS

HOWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy with a penalty": {"temperature": 0.0, "repetition_penalty": 1.4},
    "seeded": {"seed": 4, "temperature": 0.8, "top_p": 0.9},
    "unseeded": {"temperature": 1.0, "presence_penalty": 0.4},
}


def details_of(completion: CompletionOutput) -> tuple[TokenDetail, ...]:
    assert completion.details is not None
    return completion.details


def emitted(outputs: list[RequestOutput]) -> list[Any]:
    return [(out.outputs[0].token_ids, out.outputs[0].sources, out.outputs[0].finish_reason) for out in outputs]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("drafter", [name for name in DRAFTERS if name != "composite"])  # which chooses by time
def test_asking_changes_no_bit_and_every_token_has_its_detail(drafter: str, how: str) -> None:
    runs = []
    for wanted in (False, True):
        engine = toy_engine(DISTRIBUTION, DRAFTERS[drafter](), vocab_size=VOCAB, end_token_ids=ENDS)
        runs.append(run(engine, PROMPTS, SamplingParams(max_tokens=20, token_details=wanted, **HOWS[how])))
    assert emitted(runs[0]) == emitted(runs[1])
    assert all(out.outputs[0].details is None for out in runs[0])
    for out in runs[1]:
        completion, stats = out.outputs[0], out.metrics.speculative_decoding
        details = details_of(completion)
        assert tuple(detail.token_id for detail in details) == completion.token_ids
        assert tuple(detail.source for detail in details) == completion.sources
        steps = [list(group) for _, group in groupby(details, key=lambda detail: detail.step)]
        assert [step[0].step for step in steps] == list(range(1, stats.num_steps + 1))
        for step in steps:
            assert [detail.position for detail in step] == list(range(len(step)))
        for detail in details:
            assert 0.0 < detail.target_prob <= 1.0
            assert (detail.acceptance_prob is not None) == (detail.source == "accepted")
            assert (detail.rejected is not None) == (detail.source == "recovered")
            if detail.rejected is not None and how.startswith("greedy"):
                assert detail.rejected.acceptance_prob == 0.0


@pytest.mark.parametrize("width", [1, 2, 3])
def test_drawn_drafts_tell_the_distributions_of_target_and_draft(width: int) -> None:
    params = SamplingParams(max_tokens=200, token_details=True)
    engine = toy_engine(DISTRIBUTION, draft_model(tree_width=width), vocab_size=VOCAB)
    (output,) = run(engine, [[1, 2]], params)
    context = tuple[int, ...]((1, 2))
    seen = set()
    for detail in details_of(output.outputs[0]):
        target, draft = DISTRIBUTION(context), blend(context)
        seen.add(detail.source)
        assert detail.target_prob == pytest.approx(target[detail.token_id])
        if detail.source == "accepted":
            assert detail.draft_prob == pytest.approx(draft[detail.token_id])
            ratio = target[detail.token_id] / draft[detail.token_id]
            assert detail.acceptance_prob == pytest.approx(min(1.0, ratio))
        if detail.rejected is not None:
            rejected = detail.rejected
            assert detail.draft_prob == pytest.approx(draft[detail.token_id])
            assert rejected.text == chr(ord("a") + rejected.token_id)
            assert rejected.target_prob == pytest.approx(target[rejected.token_id])
            assert rejected.draft_prob == pytest.approx(draft[rejected.token_id])
            assert rejected.acceptance_prob == pytest.approx(
                min(1.0, target[rejected.token_id] / draft[rejected.token_id])
            )
        context = (*context, detail.token_id)
    assert seen == {"target", "accepted", "recovered", "bonus"}


def test_point_masses_have_no_draft_probability_and_the_targets_as_their_chance() -> None:
    params = SamplingParams(max_tokens=60, seed=3, temperature=0.7, top_k=5, token_details=True)
    engine = toy_engine(DISTRIBUTION, oracle(DISTRIBUTION, vocab_size=VOCAB), vocab_size=VOCAB)
    (output,) = run(engine, [[1, 2]], params)
    context, sources = tuple[int, ...]((1, 2)), set()
    for detail in details_of(output.outputs[0]):
        probs = probs_of(np.log(DISTRIBUTION(context)), params)
        sources.add(detail.source)
        assert detail.draft_prob is None
        assert detail.target_prob == pytest.approx(probs[detail.token_id])
        if detail.source == "accepted":
            assert detail.acceptance_prob == detail.target_prob
        if detail.rejected is not None:
            assert detail.rejected.token_id != detail.token_id
            assert detail.rejected.acceptance_prob == pytest.approx(probs[detail.rejected.token_id])
        context = (*context, detail.token_id)
    assert {"accepted", "recovered"} <= sources


def test_a_distribution_that_depends_on_the_text_is_told_with_the_drafts_before_the_token() -> None:
    params = SamplingParams(max_tokens=60, seed=3, presence_penalty=1.5, frequency_penalty=0.3, token_details=True)
    engine = toy_engine(DISTRIBUTION, oracle(DISTRIBUTION, vocab_size=VOCAB), vocab_size=VOCAB)
    (output,) = run(engine, [[1, 2]], params)
    context, sampler, late = tuple[int, ...]((1, 2)), RequestSampler(params, [1, 2], vocab_size=VOCAB), 0
    for detail in details_of(output.outputs[0]):
        assert detail.target_prob == pytest.approx(
            sampler.probs(np.log(DISTRIBUTION(context)), context)[detail.token_id]
        )
        late += detail.position > 0
        context = (*context, detail.token_id)
    assert late > 5


def test_greedy_tells_the_softmax_of_the_model_and_which_draft_was_wrong() -> None:
    drafter = oracle(DISTRIBUTION, right=lambda request: 2, vocab_size=VOCAB)
    (output,) = run(
        toy_engine(DISTRIBUTION, drafter, vocab_size=VOCAB), [[1, 2]], GREEDY.model_copy(update={"token_details": True})
    )
    context, recovered = tuple[int, ...]((1, 2)), 0
    for detail in details_of(output.outputs[0]):
        assert detail.target_prob == pytest.approx(DISTRIBUTION(context)[detail.token_id])
        if detail.source == "accepted":
            assert detail.acceptance_prob == 1.0
        if detail.rejected is not None:
            recovered += 1
            assert detail.position == 2
            assert detail.rejected.token_id == (detail.token_id + 1) % VOCAB
            assert detail.rejected.target_prob == pytest.approx(DISTRIBUTION(context)[detail.rejected.token_id])
        context = (*context, detail.token_id)
    assert recovered > 3


def test_estimates_of_a_retrieval_are_told_token_by_token() -> None:
    class Retrieval(ScriptedDrafter):
        def propose(self, batch: Any) -> list[Proposal]:
            return [self._with_chances(entry) for entry in batch]

        def _with_chances(self, entry: DraftRequest) -> Proposal:
            token_ids = tuple(self._choose(entry.request, entry.max_tokens))
            return Proposal(token_ids, chances=(0.8, 0.4, 0.3, 0.3)[: len(token_ids)])

    drafter = Retrieval(oracle(DISTRIBUTION, vocab_size=VOCAB)._choose)
    params = GREEDY.model_copy(update={"token_details": True, "max_tokens": 6})
    (output,) = run(toy_engine(DISTRIBUTION, drafter, vocab_size=VOCAB), [[1, 2]], params)
    details = details_of(output.outputs[0])
    assert [detail.source for detail in details] == ["target", *["accepted"] * 4, "bonus"]
    assert [detail.draft_prob for detail in details] == [None, 0.8, 0.5, pytest.approx(0.75), 1.0, None]


def test_pieces_of_a_stream_carry_the_details_of_their_tokens() -> None:
    engine = toy_engine(DISTRIBUTION, draft_model(), vocab_size=VOCAB)
    engine.add_request("r", [1, 2], SamplingParams(max_tokens=9, token_details=True))
    pieces = []
    while engine.has_requests:
        pieces += [piece for _, piece in engine.step()]
    streamed = [detail for piece in pieces for detail in piece.details or ()]
    assert streamed == list(details_of(engine.take_output("r").outputs[0]))
    assert all(len(piece.details or ()) == len(piece.token_ids) for piece in pieces)
    assert streamed[0].to_dict("x")["text"] == "x"
