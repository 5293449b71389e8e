"""Estimates of survival: they begin with what is believed, follow what is seen, and never rise along a draft."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.scheduler.survival import SurvivalEstimates

OUTCOMES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 6), st.integers(0, 6)), max_size=40)


@given(st.floats(0.0, 1.0), OUTCOMES, st.booleans())
def test_survival_is_a_falling_probability(prior: float, outcomes: list[tuple[str, int, int]], chances: bool) -> None:
    estimates = SurvivalEstimates(prior)
    promised = [0.9**i for i in range(1, 9)] if chances else None
    for name, accepted, more in outcomes:
        estimates.observe(name, accepted, min(accepted + more, 8) or 1, promised)
    for name in "abc":
        survival = estimates.survival(name, 8, promised)
        assert all(0.0 <= chance < 1.0 for chance in survival)
        assert all(later <= chance + 1e-12 for chance, later in itertools.pairwise(survival))


def test_without_outcomes_the_prior() -> None:
    assert SurvivalEstimates(0.5).survival("a", 3) == pytest.approx([0.5, 0.25, 0.125])


def test_outcomes_at_each_position_are_followed() -> None:
    estimates = SurvivalEstimates(0.5)
    for _ in range(200):
        estimates.observe("a", 2, 4)
    survival = estimates.survival("a", 4)
    assert survival[1] > 0.9
    assert survival[2] < 0.1


def test_a_new_request_begins_with_what_the_others_had_and_then_has_its_own() -> None:
    estimates = SurvivalEstimates(0.5)
    for _ in range(100):
        estimates.observe("good", 4, 4)
    assert estimates.survival("new", 1)[0] > 0.9
    for _ in range(12):
        estimates.observe("new", 0, 4)
    assert estimates.survival("new", 1)[0] < 0.35
    assert estimates.survival("good", 1)[0] > 0.9
    estimates.forget("new")
    assert estimates.survival("new", 1)[0] > 0.8


def test_promises_are_corrected_by_how_they_were_kept() -> None:
    estimates = SurvivalEstimates(0.5)
    promise = [0.8, 0.6]
    assert estimates.survival("a", 2, promise) == pytest.approx(promise)
    for _ in range(30):
        estimates.observe("a", 0, 2, promise)
    assert estimates.survival("a", 2, promise)[0] < 0.1
    for _ in range(60):
        estimates.observe("a", 2, 2, promise)
    assert estimates.survival("a", 2, promise)[0] > 0.9
