"""Acceptance estimates: they begin with the prior, follow the outcomes, and never rise along a draft."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.speculation.acceptance import AcceptanceEstimates, RequestOutcomes

OUTCOMES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 6), st.integers(0, 6)), max_size=40)


@given(st.floats(0.0, 1.0), OUTCOMES, st.booleans())
def test_acceptance_probabilities_never_rise_along_a_draft(
    prior: float, outcomes: list[tuple[str, int, int]], chances: bool
) -> None:
    estimates, own = AcceptanceEstimates(prior), {name: RequestOutcomes() for name in "ab"}
    promised = [0.9**i for i in range(1, 9)] if chances else None
    for name, accepted, more in outcomes:
        estimates.observe(own[name], accepted, min(accepted + more, 8) or 1, promised)
    for each in (own["a"], own["b"], RequestOutcomes(), None):
        probs = estimates.probs(each, 8, promised)
        assert all(0.0 <= prob < 1.0 for prob in probs)
        assert all(later <= prob + 1e-12 for prob, later in itertools.pairwise(probs))


def test_without_outcomes_the_prior() -> None:
    assert AcceptanceEstimates(0.5).probs(None, 3) == pytest.approx([0.5, 0.25, 0.125])


def test_outcomes_at_each_position_are_followed() -> None:
    estimates, own = AcceptanceEstimates(0.5), RequestOutcomes()
    for _ in range(200):
        estimates.observe(own, 2, 4)
    probs = estimates.probs(own, 4)
    assert probs[1] > 0.9
    assert probs[2] < 0.1


def test_a_new_request_begins_with_what_the_others_had_and_then_has_its_own() -> None:
    estimates, good, new = AcceptanceEstimates(0.5), RequestOutcomes(), RequestOutcomes()
    for _ in range(100):
        estimates.observe(good, 4, 4)
    assert estimates.probs(new, 1)[0] > 0.9
    for _ in range(12):
        estimates.observe(new, 0, 4)
    assert estimates.probs(new, 1)[0] < 0.35
    assert estimates.probs(good, 1)[0] > 0.9
    assert estimates.probs(None, 1)[0] > 0.8


def test_estimates_of_the_drafter_are_scaled_by_what_was_accepted_of_them() -> None:
    estimates, own = AcceptanceEstimates(0.5), RequestOutcomes()
    promise = [0.8, 0.6]
    assert estimates.probs(own, 2, promise) == pytest.approx(promise)
    for _ in range(30):
        estimates.observe(own, 0, 2, promise)
    assert estimates.probs(own, 2, promise)[0] < 0.1
    for _ in range(60):
        estimates.observe(own, 2, 2, promise)
    assert estimates.probs(own, 2, promise)[0] > 0.9
