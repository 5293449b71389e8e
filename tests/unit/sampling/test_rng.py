"""Keyed noise: determinism, distinct keys, uniformity, and draws with the right distribution."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.sampling.noise import STEP_PURPOSES, Purpose, Weights
from outrider.sampling.rng import SEED_MAX, SEED_MIN, KeyedNoise, derive_seed

SEEDS = st.integers(SEED_MIN, SEED_MAX)
POSITIONS = st.integers(0, 2**40)
PURPOSES = st.sampled_from(Purpose)

PINNED_UNIFORM = 0.6985723500985898
PINNED_DRAWS = [862, 118, 663, 105]
PINNED_SEED = 10775103478676019670


def chi_square_bound(cells: int, false_alarm: float) -> float:
    """A bound that chi-square with ``cells`` - 1 degrees of freedom passes with chance below ``false_alarm``.

    Laurent and Massart 2000: P(X >= d + 2 sqrt(d t) + 2 t) <= exp(-t).
    """
    d, t = cells - 1, -math.log(false_alarm)
    return d + 2.0 * math.sqrt(d * t) + 2.0 * t


def g_statistic(observed: np.ndarray, expected: np.ndarray) -> float:
    seen = observed > 0
    return float(2.0 * (observed[seen] * np.log(observed[seen] / expected[seen])).sum())


@given(SEEDS, POSITIONS, PURPOSES)
def test_uniform_is_a_function_of_its_key_strictly_inside_zero_one(seed: int, position: int, purpose: Purpose) -> None:
    u = KeyedNoise(seed).uniform(position, purpose)
    assert type(u) is float
    assert 0.0 < u < 1.0
    assert u == KeyedNoise(seed).uniform(position, purpose)


@given(SEEDS, POSITIONS, st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_step_has_its_own_noise_for_what_it_may_throw_away(seed: int, position: int, one: int, other: int) -> None:
    noise, weights = KeyedNoise(seed), np.ones(1000)
    first, second = noise.at_step(one), noise.at_step(one).at_step(other)
    for purpose in Purpose:
        kept = purpose not in STEP_PURPOSES
        assert (first.uniform(position, purpose) == noise.uniform(position, purpose)) is kept
        assert (first.uniform(position, purpose) == second.uniform(position, purpose)) is (kept or one == other)
        if kept or one == other:
            assert first.draw(weights, position, purpose) == second.draw(weights, position, purpose)


@given(SEEDS, SEEDS, POSITIONS)
def test_two_seeds_have_different_noise(one: int, other: int, position: int) -> None:
    first, second = KeyedNoise(one), KeyedNoise(other)
    places = [(position + i, purpose) for i in range(3) for purpose in Purpose]
    same = [first.uniform(*place) == second.uniform(*place) for place in places]
    assert all(same) if one == other else not any(same)


@pytest.mark.parametrize(("one", "other"), [(-1, 1), (-1, 2**64 - 1), (-(2**63), 2**63), (0, 2**63), (7, -7)])
def test_seeds_of_equal_size_or_equal_bits_are_told_apart(one: int, other: int) -> None:
    purposes = list(Purpose)
    first = [KeyedNoise(one).uniform(5, purpose) for purpose in purposes]
    second = [KeyedNoise(other).uniform(5, purpose) for purpose in purposes]
    assert not set(first) & set(second)


@pytest.mark.parametrize("seed", [SEED_MIN - 1, SEED_MAX + 1])
def test_seed_out_of_range_is_refused_by_value(seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed={seed} must be between"):
        KeyedNoise(seed)


def test_uniform_numbers_are_uniform_for_every_purpose_and_over_seeds() -> None:
    """G-test over 64 cells of 6,400 numbers; false-alarm rate 1e-6 for each of the 6 tests, and the seed is fixed."""
    noise = KeyedNoise(12345)
    runs = [[noise.uniform(position, purpose) for position in range(6400)] for purpose in Purpose]
    runs.append([KeyedNoise(seed).uniform(0, Purpose.TARGET) for seed in range(-3200, 3200)])
    for run in runs:
        counts = np.bincount((np.array(run) * 64).astype(int), minlength=64)
        assert g_statistic(counts, np.full(64, 100.0)) < chi_square_bound(64, 1e-6)


def test_purposes_positions_and_seeds_are_pairwise_independent() -> None:
    """G-test over 8 x 8 cells of 12,800 pairs; false-alarm rate 1e-6 for each of the 6 tests, and the seed is fixed."""
    noise, neighbour = KeyedNoise(99), KeyedNoise(100)

    def numbers(source: KeyedNoise, purpose: Purpose, shift: int = 0) -> np.ndarray:
        return np.array([source.uniform(position + shift, purpose) for position in range(12_800)])

    accept = numbers(noise, Purpose.ACCEPT)
    others = [numbers(noise, purpose) for purpose in Purpose if purpose is not Purpose.ACCEPT]
    others += [numbers(noise, Purpose.ACCEPT, shift=1), numbers(neighbour, Purpose.ACCEPT)]
    for other in others:
        cells = (accept * 8).astype(int) * 8 + (other * 8).astype(int)
        counts = np.bincount(cells, minlength=64)
        assert g_statistic(counts, np.full(64, 200.0)) < chi_square_bound(64, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_draws_have_the_distribution_of_their_weights(dtype: str) -> None:
    """G-test of 8,000 draws; false-alarm rate 1e-6, and the seed is fixed."""
    weights: Weights = np.array([0.0, 3.0, 0.5, 0.0, 1.5, 5.0], dtype=dtype)
    noise = KeyedNoise(4)
    counts = np.bincount([noise.draw(weights, i, Purpose.DRAFT) for i in range(8000)], minlength=6)
    assert counts[0] == counts[3] == 0
    assert g_statistic(counts, 800.0 * weights.astype(float)) < chi_square_bound(4, 1e-6)


def test_draw_and_uniform_of_one_key_are_independent() -> None:
    """G-test over 2 x 2 cells of 4,000 pairs; false-alarm rate 1e-6, and the seed is fixed."""
    noise = KeyedNoise(8)
    weights = np.array([0.5, 0.5])
    pairs = Counter(
        (noise.draw(weights, i, Purpose.ACCEPT), noise.uniform(i, Purpose.ACCEPT) < 0.5) for i in range(4000)
    )
    assert g_statistic(np.array(list(pairs.values())), np.full(len(pairs), 1000.0)) < chi_square_bound(4, 1e-6)


@given(SEEDS, POSITIONS, PURPOSES, st.lists(st.floats(0.0, 1e30), min_size=1, max_size=40))
def test_index_of_weight_zero_is_never_drawn(seed: int, position: int, purpose: Purpose, values: list[float]) -> None:
    weights = np.array(values)
    if weights.any():
        assert weights[KeyedNoise(seed).draw(weights, position, purpose)] > 0.0


@given(SEEDS, POSITIONS, st.integers(2, 30), st.data())
def test_other_weights_do_not_touch_an_index_own_noise(
    seed: int, position: int, size: int, data: st.DataObject
) -> None:
    """The winner still wins after any of the losers are struck out: what makes truncated distributions share noise."""
    weights = np.random.default_rng(size).random(size) + 0.01
    noise = KeyedNoise(seed)
    winner = noise.draw(weights, position, Purpose.TARGET)
    struck = data.draw(st.lists(st.integers(0, size - 1)))
    weights[[index for index in struck if index != winner]] = 0.0
    assert noise.draw(weights, position, Purpose.TARGET) == winner


@pytest.mark.parametrize("scale", [2.0**-1060, 1e-30, 1.0, 1e300])
def test_draw_does_not_depend_on_the_scale_of_the_weights(scale: float) -> None:
    noise = KeyedNoise(1)
    weights = np.array([1.0, 2.0, 4.0])
    for position in range(50):
        scaled = noise.draw(weights * scale, position, Purpose.BONUS)
        assert scaled == noise.draw(weights, position, Purpose.BONUS)


@pytest.mark.parametrize(
    "weights", [[0.0, 0.0], [], [1.0, math.nan], [1.0, math.inf], [2.0, -1.0], [math.nan, math.nan]]
)
def test_weights_that_are_no_distribution_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights must be non-negative with a positive finite sum"):
        KeyedNoise(0).draw(np.array(weights), 0, Purpose.TARGET)


def test_derived_seeds_differ_by_every_index_and_order() -> None:
    keys = [(), (0,), (1,), (-1,), (2**64 - 1,), (2**64,), (0, 0), (0, 1), (1, 0), (2**200,)]
    seeds = {derive_seed(seed, *indices) for seed in (0, 1, -1, 2**63, -(2**63), 2**64) for indices in keys}
    assert len(seeds) == 6 * len(keys)
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert derive_seed(7, 1, 2) == derive_seed(7, 1, 2)


def test_noise_keeps_its_values() -> None:
    """A seeded answer should survive an upgrade: these values change only with a note in the changelog."""
    noise = KeyedNoise(7)
    assert noise.uniform(3, Purpose.ACCEPT) == PINNED_UNIFORM
    weights = np.ones(1000)
    assert [noise.draw(weights, position, Purpose.TARGET) for position in range(4)] == PINNED_DRAWS
    assert derive_seed(7, 1) == PINNED_SEED
