"""Rejection sampling: against closed forms, and its guards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.audit.cases import TableModel
from outrider.audit.enumerate import enumerate_outcomes
from outrider.audit.properties import FixedNoise
from outrider.sampling.noise import Noise, Purpose, Weights
from outrider.sampling.rng import KeyedNoise
from outrider.verification import oracle
from outrider.verification.base import Proposal, VerifyResult
from outrider.verification.standard import residual, verify_standard
from tests.unit.verification import oracle_step

Tokens = tuple[int, ...]


def table(model: TableModel) -> oracle.Table:
    return lambda context: np.exp(model.logits(context)) / np.exp(model.logits(context)).sum()


def random_distributions(seed: int, vocab_size: int, rows: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    distributions = rng.dirichlet(np.full(vocab_size, 0.6), size=rows) * (rng.random((rows, vocab_size)) < 0.8)
    distributions[:, 0] += 0.01
    return np.asarray(distributions / distributions.sum(axis=1, keepdims=True))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(0, 2), st.sampled_from([0.0, 0.4]))
def test_number_accepted_and_tokens_have_the_distribution_of_the_formula(
    seed: int, vocab_size: int, num_drafts: int, zeros: float
) -> None:
    target = table(TableModel(vocab_size, seed, zeros=zeros))
    draft = table(TableModel(vocab_size, seed + 1, zeros=zeros))

    def step(noise: Noise) -> tuple[int, Tokens]:
        token_ids: Tokens = ()
        rows: tuple[Weights, ...] = ()
        for place in range(num_drafts):
            rows = (*rows, draft(token_ids))
            token_ids = (*token_ids, noise.draw(rows[-1], 7 + place, Purpose.DRAFT))
        result = verify_standard(Proposal(token_ids, rows), lambda place: target(token_ids[:place]), noise, 7)
        return result.num_accepted, (*token_ids[: result.num_accepted], result.token_id)

    found: dict[tuple[int, Tokens], float] = {}
    for probability, outcome in enumerate_outcomes(step):
        found[outcome] = found.get(outcome, 0.0) + probability
    assert oracle.total_variation(found, oracle_step.step_distribution(target, draft, (), num_drafts)) < 1e-12


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(0, 4))
def test_acceptance_and_expected_tokens_of_independent_places(seed: int, vocab_size: int, num_drafts: int) -> None:
    target_probs, draft_probs = random_distributions(seed, vocab_size, 2)
    alpha = oracle_step.acceptance_probability(target_probs, draft_probs)
    accepting = 0.0
    for token_id in np.flatnonzero(draft_probs):
        proposal = Proposal((int(token_id),), (draft_probs,))

        def accepted(noise: Noise, proposal: Proposal = proposal) -> int:
            return verify_standard(proposal, lambda place: target_probs, noise, 0).num_accepted

        accepting += float(draft_probs[token_id]) * sum(chance * a for chance, a in enumerate_outcomes(accepted))
    assert accepting == pytest.approx(alpha, abs=1e-12)
    if alpha < 0.999:
        closed_form = (1.0 - alpha ** (num_drafts + 1)) / (1.0 - alpha)
        assert oracle_step.expected_tokens(alpha, num_drafts) == pytest.approx(closed_form, rel=1e-9)


@pytest.mark.parametrize("probs", [None, (np.array([0.0, 0.0, 1.0]),)])
def test_point_mass_is_accepted_with_p_and_replaced_from_p_without_it(probs: tuple[Weights, ...] | None) -> None:
    target_probs = np.array([0.5, 0.2, 0.3])
    found: dict[VerifyResult, float] = {}
    for probability, result in enumerate_outcomes(
        lambda noise: verify_standard(Proposal((2,), probs), lambda place: target_probs, noise, 0)
    ):
        found[result] = found.get(result, 0.0) + probability
    expected = {VerifyResult(0, token, "recovered"): (0.5, 0.2)[token] for token in (0, 1)}
    expected |= {VerifyResult(1, token, "bonus"): 0.3 * target_probs[token] for token in range(3)}
    assert oracle.total_variation(found, expected) < 1e-12


@given(st.integers(0, 2**32), st.integers(2, 8))
def test_residual_is_the_formula(seed: int, vocab_size: int) -> None:
    target_probs, draft_probs = random_distributions(seed, vocab_size, 2)
    weights = residual(target_probs, draft_probs)
    assert np.allclose(weights / weights.sum(), oracle_step.residual_probs(target_probs, draft_probs), atol=1e-14)
    assert np.array_equal(residual(target_probs, target_probs), target_probs)


def test_residual_of_float32_rows_is_taken_in_float64() -> None:
    target_probs, draft_probs = np.array([0.6, 0.4], dtype=np.float32), np.array([0.5, 0.5])
    assert residual(target_probs, draft_probs).tolist() == [float(np.float32(0.6)) - 0.5, 0.0]


def test_rejection_that_only_rounding_allows_falls_back_to_the_target() -> None:
    target_probs = np.array([0.3, 0.7 - 1e-16])
    result = verify_standard(
        Proposal((1,), (np.array([0.3, 0.7]),)), lambda place: target_probs, FixedNoise(1.0 - 2.0**-53), 0
    )
    assert result == VerifyResult(0, 1, "recovered")


def test_token_ruled_out_by_the_target_is_never_accepted() -> None:
    rows = (np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    result = verify_standard(Proposal((0,), (rows[1],)), lambda place: rows[0], FixedNoise(0.0), 0)
    assert result == VerifyResult(0, 1, "recovered")


def test_every_key_is_at_its_own_position_and_rows_are_asked_lazily() -> None:
    even = np.array([0.5, 0.5])
    asked: list[int] = []
    keys: list[tuple[int, Purpose]] = []

    class Recording(KeyedNoise):
        def uniform(self, position: int, purpose: Purpose, *, branch: int = 0) -> float:
            keys.append((position, purpose))
            return 0.9 if position == 12 else 0.1

        def draw(self, weights: Weights, position: int, purpose: Purpose, *, branch: int = 0) -> int:
            keys.append((position, purpose))
            return super().draw(weights, position, purpose)

    def target_probs_at(place: int) -> Weights:
        asked.append(place)
        return even if place != 2 else np.array([0.9, 0.1])

    proposal = Proposal((0, 1, 1, 0), (even,) * 4)
    assert verify_standard(proposal, target_probs_at, Recording(0), 10) == VerifyResult(2, 0, "recovered")
    assert asked == [0, 1, 2]
    assert keys == [(10, Purpose.ACCEPT), (11, Purpose.ACCEPT), (12, Purpose.ACCEPT), (12, Purpose.RECOVER)]
    keys.clear()
    assert verify_standard(Proposal((0,), (even,)), lambda place: even, Recording(0), 20).source == "bonus"
    assert keys == [(20, Purpose.ACCEPT), (21, Purpose.BONUS)]
    keys.clear()
    assert verify_standard(Proposal(), lambda place: even, Recording(0), 30).source == "target"
    assert keys == [(30, Purpose.TARGET)]
