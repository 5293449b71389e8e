"""Sample-and-match: the output is the plain output, whatever was proposed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.audit.cases import TableModel
from outrider.sampling.noise import Purpose
from outrider.sampling.probabilities import probabilities
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams
from outrider.verification.base import Proposal, VerifyResult
from outrider.verification.match import sampled_tokens, verify_match
from outrider.verification.standard import verify_standard

Tokens = tuple[int, ...]


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ((), VerifyResult(0, 5, "target")),
        ((5, 6), VerifyResult(2, 7, "bonus")),
        ((5, 9), VerifyResult(1, 6, "recovered")),
        ((9, 6), VerifyResult(0, 5, "recovered")),
    ],
)
def test_drafts_are_accepted_while_equal(token_ids: Tokens, expected: VerifyResult) -> None:
    asked: list[int] = []

    def target_token(place: int) -> int:
        asked.append(place)
        return (5, 6, 7)[place]

    assert verify_match(token_ids, target_token) == expected
    assert asked == list(range(expected.num_accepted + 1))


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32),
    st.integers(-(2**63), 2**64 - 1),
    st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=12, max_size=12),
    st.sampled_from([SamplingParams(), SamplingParams(temperature=0.7, top_p=0.8), SamplingParams(temperature=0.0)]),
)
def test_seeded_output_equals_the_plain_run_for_any_proposals(
    model_seed: int, seed: int, proposals: list[list[int]], params: SamplingParams
) -> None:
    model = TableModel(5, model_seed)
    noise = KeyedNoise(seed)
    prompt: Tokens = (0, 3)
    plain: Tokens = ()
    for position in range(len(prompt), len(prompt) + 12):
        plain = (*plain, noise.draw(probabilities(model.logits(prompt + plain), params), position, Purpose.TARGET))

    emitted: Tokens = ()
    for token_ids in proposals:
        context = prompt + emitted
        # Half of the proposals begin with the truth, so that long acceptances happen.
        drafts = (*plain[len(emitted) :][: len(token_ids)],) if sum(token_ids) % 2 else tuple(token_ids)

        def row(place: int, context: Tokens = context, drafts: Tokens = drafts) -> np.ndarray:
            return np.asarray(probabilities(model.logits(context + drafts[:place]), params))

        result = verify_match(drafts, sampled_tokens(row, noise, len(context)))
        emitted += (*drafts[: result.num_accepted], result.token_id)
        if len(emitted) >= 12:
            break
    assert emitted[:12] == plain[: len(emitted)]


def test_standard_without_drafts_draws_what_plain_sampling_draws() -> None:
    row = np.array([0.2, 0.3, 0.5])
    for seed in range(20):
        noise = KeyedNoise(seed)
        plain = verify_match((), sampled_tokens(lambda place: row, noise, 9))
        assert verify_standard(Proposal(), lambda place: row, noise, 9) == plain
