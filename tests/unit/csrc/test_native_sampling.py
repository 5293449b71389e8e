"""The native distribution, draw and log-probabilities against NumPy's, which the rest of the tests hold to the
definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import native
from outrider.sampling.logprobs import log_softmax, report, report_of_logits
from outrider.sampling.noise import Purpose, Weights
from outrider.sampling.probabilities import greedy_token, numpy_probabilities, probabilities
from outrider.sampling.rng import KeyedNoise, numpy_draw
from outrider.sampling_params import SamplingParams

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-3, 0.3, 0.8, 1.0, 2.0, 100.0]),
    top_k=st.sampled_from([0, -1, 2, 5, 40, 300, 100_000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 1e-4, 0.05, 0.9]),
    typical_p=st.sampled_from([1.0, 0.9, 0.2]),
)
SIZES = st.one_of(st.integers(1, 40), st.integers(1000, 5000))


def row_of(seed: int, size: int, spread: float, masked: float, dtype: Any) -> Weights:
    """A random row, some of it masked with -inf, some values several times."""
    rng = np.random.default_rng(seed)
    row = (spread * rng.standard_normal(size)).astype(dtype)
    row[rng.random(size) < masked] = -np.inf
    row[rng.integers(size, size=size // 8)] = row[rng.integers(size)]
    row[rng.integers(size)] = 1.5
    return row


ROWS = st.builds(
    row_of,
    st.integers(0, 2**32),
    SIZES,
    st.sampled_from([0.1, 3.0, 30.0]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([np.float32, np.float64]),
)


@settings(max_examples=300)
@given(ROWS, PARAMS)
def test_distributions_agree(row: Weights, params: SamplingParams) -> None:
    if params.greedy:
        return
    own, other = probabilities(row, params), numpy_probabilities(row, params)
    assert own.dtype == np.float64
    assert np.array_equal(own > 1e-290, other > 1e-290), "another set of tokens is kept"
    assert np.allclose(own, other, rtol=1e-12, atol=1e-290)


@pytest.mark.parametrize("spread", [0.1, 3.0, 8.0])
@pytest.mark.parametrize(
    "keys",
    [{}, {"top_p": 0.95}, {"top_k": 50}, {"top_k": 5000}, {"min_p": 0.02}, {"typical_p": 0.9}, {"typical_p": 0.1}],
    ids=str,
)
def test_distributions_agree_on_a_large_vocabulary(keys: dict[str, Any], spread: float) -> None:
    row = row_of(1, 151_936, spread, 0.0, np.float32)
    params = SamplingParams(temperature=0.8, **keys)
    assert np.allclose(probabilities(row, params), numpy_probabilities(row, params), rtol=1e-12, atol=0.0)


@settings(max_examples=200)
@given(ROWS, st.integers(0, 2**32), st.sampled_from([1e-5, 1e-7, 1e-9, -1e-9, -1e-7, -1e-5]))
def test_a_nucleus_that_hangs_on_the_last_digits_agrees(row: Weights, choice: int, off: float) -> None:
    """A mass just above or below what some number of tokens holds: a rough sum does not tell how many it takes."""
    shares = np.sort(numpy_probabilities(row, SamplingParams(temperature=0.8)))[::-1].cumsum()
    top_p = float(shares[choice % len(shares)] * (1.0 + off))
    if not 0.0 < top_p < 1.0:
        return
    params = SamplingParams(temperature=0.8, top_p=top_p)
    assert np.array_equal(probabilities(row, params) > 0.0, numpy_probabilities(row, params) > 0.0)


@pytest.mark.parametrize("top_p", [0.25, 0.5, 0.75])
def test_equal_tokens_are_cut_by_lowest_id(top_p: float) -> None:
    probs = probabilities(np.zeros(4), SamplingParams(temperature=1.0, top_p=top_p))
    assert np.flatnonzero(probs).tolist() == list(range(int(4 * top_p)))


def test_a_distribution_depends_on_its_row_alone() -> None:
    rows = np.stack([row_of(seed, 3000, 3.0, 0.2, np.float32) for seed in range(6)])
    params = SamplingParams(temperature=0.9, top_p=0.97)
    alone = [probabilities(row.copy(), params) for row in rows]
    for shift in range(6):
        for at in np.roll(np.arange(6), shift):
            assert np.array_equal(probabilities(rows[at], params), alone[at])
    strided = np.empty((3000, 2), dtype=np.float32)
    strided[:, 0] = rows[0]
    assert np.array_equal(probabilities(strided[:, 0], params), alone[0]), "a row need not lie in one piece"


@settings(max_examples=300)
@given(
    st.integers(0, 2**32), SIZES, st.sampled_from([0.0, 0.5, 0.999]), st.sampled_from([1.0, 1e-300, 1e300, 1e-3]),
    st.integers(0, 2**40), st.sampled_from(Purpose),
)  # fmt: skip
def test_draws_agree(seed: int, size: int, zeros: float, scale: float, position: int, purpose: Purpose) -> None:
    rng = np.random.default_rng(seed)
    weights = scale * rng.exponential(size=size) ** rng.integers(1, 8)
    weights[rng.random(size) < zeros] = 0.0
    weights[rng.integers(size)] = scale
    noise = KeyedNoise(seed)
    assert noise.draw(weights, position, purpose) == numpy_draw(weights, noise.key(position, purpose, 0))


def test_many_draws_from_a_flat_distribution_agree() -> None:
    """Where nearly every token comes close to winning, skipping logarithms must not skip the winner."""
    weights = np.ones(500)
    for position in range(2000):
        noise = KeyedNoise(9)
        key = noise.key(position, Purpose.TARGET, 0)
        assert noise.draw(weights, position, Purpose.TARGET) == numpy_draw(weights, key)


@pytest.mark.parametrize(
    "weights", [[0.0, 0.0], [1.0, -0.1], [math.nan, 1.0], [math.inf, 1.0], [1.0, -math.inf], []], ids=str
)
def test_weights_that_are_none_are_refused_alike(weights: list[float]) -> None:
    array = np.array(weights)
    with pytest.raises(ValueError, match="must be non-negative with a positive finite sum"):
        KeyedNoise(0).draw(array, 0, Purpose.TARGET)
    with pytest.raises(ValueError, match="must be non-negative with a positive finite sum"):
        numpy_draw(array, 1)


@settings(max_examples=200)
@given(ROWS, st.integers(0, 2**32), st.sampled_from([0, 1, 5, 300, 1000]))
def test_reports_agree(row: Weights, seed: int, num_top: int) -> None:
    token = seed % len(row)
    own, other = report_of_logits(row, token, num_top), report(log_softmax(row.astype(np.float64)), token, num_top)
    assert own.logprob == pytest.approx(other.logprob, rel=1e-12, abs=1e-12)
    assert own.rank == other.rank
    assert [token_id for token_id, _ in own.top] == [token_id for token_id, _ in other.top]
    assert np.allclose([value for _, value in own.top], [value for _, value in other.top], rtol=1e-12, atol=1e-12)
    assert report_of_logits(row, greedy_token(row), 1).top[0][0] == greedy_token(row)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_reports_agree_on_a_large_vocabulary(dtype: Any) -> None:
    row = row_of(5, 151_936, 3.0, 0.3, dtype)
    other = log_softmax(row.astype(np.float64))
    for token in (0, 127, 128, 75_000, 151_935, greedy_token(row)):
        own, expected = report_of_logits(row, token, 5), report(other, token, 5)
        assert own.rank == expected.rank
        assert own.logprob == pytest.approx(expected.logprob, rel=1e-13)
        assert [token_id for token_id, _ in own.top] == [token_id for token_id, _ in expected.top]


def test_the_number_of_threads_changes_no_bit() -> None:
    library, row = native.library, row_of(6, 151_936, 3.0, 0.0, np.float32)
    wanted: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"typical_p": 0.5}]
    before, results = library.num_threads(), []
    try:
        for threads in (1, 2, 5):
            library.set_num_threads(threads)
            distributions = [probabilities(row, SamplingParams(temperature=0.8, **keys)).tobytes() for keys in wanted]
            results.append((distributions, report_of_logits(row, 9, 5)))
    finally:
        library.set_num_threads(before)
    assert results[0] == results[1] == results[2]


def test_arguments_that_do_not_fit_are_refused() -> None:
    library, row = native.library, np.zeros(4, dtype=np.float32)
    keys: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
    with pytest.raises(ValueError, match="must not be empty"):
        library.probabilities(row[:0], **keys)
    with pytest.raises(ValueError, match="float32 or float64"):
        library.probabilities(row.astype(np.int64), **keys)
    for token_id in (-1, 4):
        with pytest.raises(ValueError, match=f"{token_id} is not below 4"):
            library.token_report(row, token_id, 2)
