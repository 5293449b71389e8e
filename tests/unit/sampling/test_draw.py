"""Draws that make no distribution against draws from the distribution, by the same noise."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import native
from outrider.sampling.draw import draw_token
from outrider.sampling.noise import Purpose, Weights
from outrider.sampling.probabilities import numpy_probabilities, probabilities
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling.rng import KeyedNoise, numpy_draw
from outrider.sampling_params import SamplingParams

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-3, 0.3, 0.8, 1.0, 2.0, 100.0]),
    top_k=st.sampled_from([0, 2, 40, 300]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 1e-4, 0.05, 0.9]),
    typical_p=st.sampled_from([1.0, 0.9, 0.2]),
)


def row_of(seed: int, size: int, spread: float, masked: float, dtype: Any) -> Weights:
    """A random row, some of it masked with -inf, its end in any case."""
    rng = np.random.default_rng(seed)
    row = (spread * rng.standard_normal(size)).astype(dtype)
    row[rng.random(size) < masked] = -np.inf
    row[-1] = -np.inf
    row[rng.integers(max(size - 1, 1))] = 2.5
    return row


ROWS = st.builds(
    row_of,
    st.integers(0, 2**32),
    st.one_of(st.integers(1, 40), st.integers(120, 140), st.integers(1000, 5000)),
    st.sampled_from([0.0, 0.1, 3.0, 30.0]),
    st.sampled_from([0.0, 0.5, 0.99]),
    st.sampled_from([np.float32, np.float64]),
)


@settings(max_examples=300)
@given(ROWS, PARAMS, st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**40))
def test_a_draw_is_that_from_the_distribution(row: Weights, params: SamplingParams, seed: int, position: int) -> None:
    noise = KeyedNoise(seed).at_step(3)
    drawn = draw_token(row, params, noise, position)
    assert drawn == noise.draw(probabilities(row, params), position, Purpose.TARGET)
    if not params.greedy:
        assert drawn == numpy_draw(numpy_probabilities(row, params), noise.key(position, Purpose.TARGET))


def exponential_noise(noise: KeyedNoise, position: int, token_id: int) -> float:
    """E of a token, by the definition of the keyed noise: -log of the uniform number of (key, token id)."""
    word = noise.key(position, Purpose.TARGET) + (token_id + 1) * 0x9E3779B97F4A7C15 & 2**64 - 1
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
    word = (word ^ word >> 27) * 0x94D049BB133111EB & 2**64 - 1
    word ^= word >> 31
    return -math.log((word >> 12 << 1 | 1) * 2.0**-53)


@pytest.mark.skipif(not native.available(), reason="the native library is not built")
def test_draws_differ_only_where_two_quotients_agree_within_the_bound() -> None:
    noise, params, differing = KeyedNoise(5), SamplingParams(), 0
    for position in range(2000):
        noise_0, noise_1 = exponential_noise(noise, position, 0), exponential_noise(noise, position, 1)
        if noise_1 > noise_0:
            continue
        # A row in which both tokens have nearly the same weight / E, some units in the last place apart.
        row = np.array([0.0, math.log(noise_1 / noise_0) * (1.0 + (position % 7 - 3) * 2.0**-52)])
        probs = probabilities(row, params)
        drawn, expected = draw_token(row, params, noise, position), noise.draw(probs, position, Purpose.TARGET)
        if drawn != expected:
            differing += 1
            ratio = Fraction(probs[1]) * Fraction(noise_0) / (Fraction(probs[0]) * Fraction(noise_1))
            assert abs(ratio - 1) < Fraction(5, 4) / 2**50, (position, float(ratio - 1))  # 1/4 for rounding of `probs`
    assert differing > 0, "no row was close enough to show the rounding"


@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("size", [129, 1000])
def test_many_draws_from_rows_in_which_all_may_win(spread: float, size: int) -> None:
    row, params, noise = row_of(1, size, spread, 0.0, np.float32), SamplingParams(temperature=1.0), KeyedNoise(9)
    probs = probabilities(row, params)
    for position in range(1500):
        assert draw_token(row, params, noise, position) == noise.draw(probs, position, Purpose.TARGET)


@pytest.mark.parametrize("keys", [{}, {"top_p": 0.95}, {"min_p": 0.02}, {"typical_p": 0.9}, {"top_k": 50}], ids=str)
def test_draws_on_a_large_vocabulary(keys: dict[str, Any]) -> None:
    noise, params = KeyedNoise(4), SamplingParams(temperature=0.8, **keys)
    for spread in (0.5, 4.0):
        row = row_of(2, 151_936, spread, 0.0, np.float32)
        probs = probabilities(row, params)
        for position in range(20):
            assert draw_token(row, params, noise, position) == noise.draw(probs, position, Purpose.TARGET)


def test_tokens_come_as_often_as_the_distribution_says() -> None:
    """20,000 draws over six tokens: Pearson's statistic stays below 29.9, its 99.999% point with 5 degrees."""
    row, params, noise = (
        np.array([1.0, 0.0, -np.inf, 2.0, 0.5, -1.0, 1.5]),
        SamplingParams(temperature=0.7),
        KeyedNoise(5),
    )
    counts = np.bincount([draw_token(row, params, noise, position) for position in range(20_000)], minlength=7)
    expected = 20_000 * probabilities(row, params)
    assert counts[2] == 0
    assert (((counts - expected) ** 2)[expected > 0] / expected[expected > 0]).sum() < 29.9


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 5, 127, 128, 300, 4999])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_are_not_finite_are_refused(value: float, place: int, dtype: Any) -> None:
    row = row_of(3, 5000, 3.0, 0.5, dtype)
    row[place] = value
    for params in (SamplingParams(temperature=0.8), SamplingParams(temperature=0.8, top_p=0.9)):
        with pytest.raises(ValueError, match=f"logits are not finite: {value!r} at token id {place}"):
            draw_token(row, params, KeyedNoise(1), 0)


def test_rows_without_a_token_and_without_a_shape_are_refused() -> None:
    params = SamplingParams(temperature=0.8)
    with pytest.raises(ValueError, match="every token is masked"):
        draw_token(np.full(300, -np.inf), params, KeyedNoise(1), 0)
    with pytest.raises(ValueError, match=r"not shape \(2, 3\)"):
        draw_token(np.zeros((2, 3)), params, KeyedNoise(1), 0)
    with pytest.raises(ValueError, match="not int64"):
        draw_token(np.zeros(3, dtype=np.int64), params, KeyedNoise(1), 0)


def test_noise_of_another_kind_draws_from_the_distribution() -> None:
    class Last(KeyedNoise):
        def draw(self, weights: Weights, position: int, purpose: Purpose, *, branch: int = 0) -> int:
            return int(np.flatnonzero(weights)[-1])

    assert draw_token(np.arange(6.0)[::-1].copy(), SamplingParams(temperature=1.0, top_k=3), Last(0), 0) == 2


def test_a_request_draws_by_its_edited_row() -> None:
    params = SamplingParams(
        temperature=0.9, logit_bias={3: 4.0}, repetition_penalty=1.5, allowed_token_ids=(1, 3, 5, 9)
    )
    request_sampler, noise = RequestSampler(params, [1, 2], vocab_size=40), KeyedNoise(7)
    row = row_of(8, 40, 2.0, 0.0, np.float32)
    drawn = [request_sampler.draw(row, [1, 2, 5], [9], noise, position) for position in range(200)]
    probs = request_sampler.probs(row, [1, 2, 5], [9])
    assert drawn == [noise.draw(probs, position, Purpose.TARGET) for position in range(200)]
    assert len(set(drawn)) > 1


@pytest.mark.skipif(not native.available(), reason="the native library is not built")
def test_a_draw_does_not_depend_on_its_neighbours_in_memory() -> None:
    rows = np.stack([row_of(seed, 777, 3.0, 0.2, np.float32) for seed in range(4)])
    params, noise = SamplingParams(temperature=0.9, top_p=0.97), KeyedNoise(2)
    for row in rows:
        alone = draw_token(row.copy(), params, noise, 5)
        apart = np.zeros((777, 2), dtype=np.float32)
        apart[:, 1] = row
        assert draw_token(row, params, noise, 5) == alone == draw_token(apart[:, 1], params, noise, 5)
