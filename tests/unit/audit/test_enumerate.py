"""The enumerating noise: exact branch probabilities, and noise used twice is one number."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import count
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.audit.enumerate import EnumeratingNoise, enumerate_outcomes
from outrider.errors import IntegrityError
from outrider.sampling.noise import STEP_PURPOSES, Purpose

Outcome = TypeVar("Outcome", bound=Hashable)
WEIGHTS = np.array([1.0, 0.0, 2.0, 1.0])


def probs_of(run: Callable[[EnumeratingNoise], Outcome]) -> dict[Outcome, float]:
    found: dict[Outcome, float] = {}
    for probability, outcome in enumerate_outcomes(run):
        found[outcome] = found.get(outcome, 0.0) + probability
    return found


def test_draw_branches_over_positive_weights() -> None:
    assert probs_of(lambda noise: noise.draw(WEIGHTS, 3, Purpose.DRAFT)) == {0: 0.25, 2: 0.5, 3: 0.25}


def test_no_noise_is_one_branch() -> None:
    assert probs_of(lambda noise: "done") == {"done": 1.0}


@pytest.mark.parametrize(
    ("scale", "bound", "chance"),
    [(0.5, 0.125, 0.25), (0.5, 0.5, 1.0), (0.5, 0.9, 1.0), (0.5, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.1, 1.0)],
)
def test_comparison_holds_with_its_exact_chance(scale: float, bound: float, chance: float) -> None:
    found = probs_of(lambda noise: noise.uniform(0, Purpose.ACCEPT) * scale < bound)
    assert found.get(True, 0.0) == chance
    assert sum(found.values()) == 1.0


def test_one_key_is_one_number_and_two_keys_are_two() -> None:
    def both(noise: EnumeratingNoise, second: Purpose) -> tuple[bool, bool]:
        return noise.uniform(0, Purpose.ACCEPT) * 1.0 < 0.5, noise.uniform(0, second) * 1.0 < 0.25

    assert probs_of(lambda noise: both(noise, Purpose.ACCEPT)) == {
        (True, True): 0.25,
        (True, False): 0.25,
        (False, False): 0.5,
    }
    assert probs_of(lambda noise: both(noise, Purpose.DRAFT))[False, True] == 0.125


def test_draw_repeats_itself_and_shares_its_number_with_the_comparison() -> None:
    def twice(noise: EnumeratingNoise) -> tuple[int, int]:
        return noise.draw(WEIGHTS, 1, Purpose.TARGET), noise.draw(WEIGHTS, 1, Purpose.TARGET)

    assert probs_of(twice) == {(0, 0): 0.25, (2, 2): 0.5, (3, 3): 0.25}

    def mixed(noise: EnumeratingNoise) -> tuple[bool, int]:
        return noise.uniform(1, Purpose.TARGET) * 1.0 < 0.5, noise.draw(WEIGHTS, 1, Purpose.TARGET)

    assert probs_of(mixed) == {(True, 0): 0.25, (True, 2): 0.25, (False, 2): 0.25, (False, 3): 0.25}


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any), min_size=1, max_size=4))
def test_probabilities_of_any_run_sum_to_one_and_factor(rows: list[list[int]]) -> None:
    def run(noise: EnumeratingNoise) -> tuple[int, ...]:
        return tuple(noise.draw(np.array(row, dtype=float), i, Purpose.DRAFT) for i, row in enumerate(rows))

    found = probs_of(run)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    for outcome, probability in found.items():
        expected = np.prod([row[index] / sum(row) for row, index in zip(rows, outcome, strict=True)])
        assert probability == pytest.approx(float(expected), abs=1e-12)


def test_weights_that_are_no_distribution_are_refused() -> None:
    for weights in ([0.0, 0.0], [1.0, np.nan], [1.0, np.inf], [2.0, -1.0]):
        with pytest.raises(ValueError, match="weights must be non-negative"):
            EnumeratingNoise().draw(np.array(weights), 0, Purpose.DRAFT)


def test_noise_of_two_steps_is_independent_only_for_what_a_step_may_throw_away() -> None:
    def twice(noise: EnumeratingNoise, purpose: Purpose) -> tuple[int, int]:
        one, other = noise.at_step(3), noise.at_step(3).at_step(4)
        return one.draw(WEIGHTS, 5, purpose), other.draw(WEIGHTS, 5, purpose)

    for purpose in Purpose:
        pairs = probs_of(lambda noise, purpose=purpose: twice(noise, purpose))  # type: ignore[misc]
        assert all(one == other for one, other in pairs) is (purpose not in STEP_PURPOSES)


def test_run_that_changes_its_course_is_found_out() -> None:
    calls = count()

    def fickle(noise: EnumeratingNoise) -> int:
        return noise.draw(WEIGHTS if next(calls) else WEIGHTS[::-1], 0, Purpose.DRAFT)

    with pytest.raises(IntegrityError, match="must be deterministic"):
        list(enumerate_outcomes(fickle))
