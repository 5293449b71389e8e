"""Medians of paired ratios."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench.paired import equal_prefix, paired_ratio, quartiles

RATES = st.dictionaries(st.integers(0, 9), st.floats(0.5, 50), min_size=1)


def test_pairs_are_those_of_the_same_key() -> None:
    ratio = paired_ratio({"a": 2.0, "b": 9.0, "c": 8.0}, {"a": 1.0, "b": 3.0, "d": 1.0})
    assert ratio is not None
    assert (ratio.median, ratio.pairs) == (2.5, 2)
    assert (ratio.low, ratio.high) == (2.25, 2.75)


def test_a_run_without_a_rate_has_no_ratio() -> None:
    ratio = paired_ratio({0: 0.0, 1: 4.0, 2: 5.0}, {0: 1.0, 1: 2.0, 2: 0.0})
    assert ratio is not None
    assert ratio.to_dict() == {"median": 2.0, "low": 2.0, "high": 2.0, "pairs": 1}
    assert paired_ratio({0: 1.0}, {1: 1.0}) is None
    assert paired_ratio({}, {}) is None


@given(RATES, st.floats(0.25, 4), st.dictionaries(st.integers(0, 9), st.floats(0.1, 1)))
def test_a_slow_spell_that_both_halves_share_changes_nothing(
    rates: dict[int, float], factor: float, spells: dict[int, float]
) -> None:
    base = {key: rate * spells.get(key, 1.0) for key, rate in rates.items()}
    fast = {key: factor * rate for key, rate in base.items()}
    ratio = paired_ratio(fast, base)
    assert ratio is not None
    assert ratio.median == pytest.approx(factor)
    assert ratio.low == pytest.approx(factor)
    assert ratio.high == pytest.approx(factor)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12))
def test_quartiles_leave_a_quarter_on_either_side(values: list[float]) -> None:
    low, high = quartiles(values)
    assert min(values) <= low <= statistics.median(values) <= high <= max(values)
    for outside in (sum(value < low for value in values), sum(value > high for value in values)):
        assert 4 * outside <= len(values) + 2, "a quarter, up to the interpolation between two values"


def test_equal_prefix() -> None:
    assert equal_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert equal_prefix([1, 2], [1, 2, 4]) == 2
    assert equal_prefix([5], [1]) == 0
    assert equal_prefix([], [1]) == 0
