"""The distribution: mass, support, ties, row independence, refusals; against the oracle's own full-sort formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.sampling.noise import Weights
from outrider.sampling.probabilities import greedy_token, probabilities
from outrider.sampling_params import SamplingParams
from outrider.verification.oracle import processed_probs

FLOATS = st.sampled_from(["float32", "float64"])
# Small integers make ties common; -inf masks.
LOGITS = st.lists(st.sampled_from([-math.inf, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]), min_size=1, max_size=30).filter(
    lambda values: max(values) > -math.inf
)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.integers(-1, 35),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    min_p=st.sampled_from([0.0, 0.05, 0.4, 1.0]),
    typical_p=st.sampled_from([1.0, 0.93, 0.41, 0.07]),
)


def support(probs: Weights) -> list[int]:
    return [int(token_id) for token_id in np.flatnonzero(probs)]


@given(LOGITS, PARAMS, FLOATS)
def test_distribution_is_a_distribution_in_float64(values: list[float], params: SamplingParams, dtype: str) -> None:
    logits: Weights = np.array(values, dtype=dtype)
    before = logits.copy()
    probs = probabilities(logits, params)
    assert probs.dtype == np.float64
    assert probs.shape == logits.shape
    assert probs.min() >= 0.0
    assert float(probs.sum(dtype=np.float64)) == pytest.approx(1.0, abs=1e-6)
    assert not probs[logits == -np.inf].any(), "a masked token got a chance"
    assert np.array_equal(before, logits), "the logits were changed in place"


@given(st.lists(st.integers(-8000, 8000), min_size=1, max_size=40, unique=True), PARAMS)
def test_probabilities_equal_the_formula_away_from_the_edge_of_top_p(values: list[int], params: SamplingParams) -> None:
    logits = np.array(values) / 1000.0
    full = processed_probs(logits, params.model_copy(update={"top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}))
    masses = np.cumsum(np.sort(full)[::-1])
    if params.top_p < 1.0 and np.abs(masses - params.top_p).min() < 1e-9:
        return  # rounding may decide whether the mass reaches top_p
    assert np.allclose(probabilities(logits, params), processed_probs(logits, params), rtol=1e-9, atol=1e-12)


@given(LOGITS, st.integers(1, 35), FLOATS)
def test_top_k_keeps_exactly_k_with_ties_to_the_lowest_id(values: list[float], top_k: int, dtype: str) -> None:
    by_rank = sorted(range(len(values)), key=lambda token_id: (-values[token_id], token_id))
    expected = [token_id for token_id in by_rank[:top_k] if values[token_id] > -math.inf]
    probs = probabilities(np.array(values, dtype=dtype), SamplingParams(temperature=0.9, top_k=top_k))
    assert support(probs) == sorted(expected)


@given(LOGITS, st.floats(0.01, 0.999), FLOATS)
def test_top_p_keeps_the_smallest_set_that_reaches_the_mass(values: list[float], top_p: float, dtype: str) -> None:
    logits: Weights = np.array(values, dtype=dtype)
    full = probabilities(logits, SamplingParams()).astype(np.float64)
    kept = support(probabilities(logits, SamplingParams(top_p=top_p)))
    by_rank = sorted(range(len(values)), key=lambda token_id: (-full[token_id], token_id))
    assert kept == sorted(by_rank[: len(kept)]), "not the most probable, or ties not by lowest id"
    assert full[kept].sum() >= top_p - 1e-6
    assert full[by_rank[: len(kept) - 1]].sum() < top_p + 1e-6


def test_top_p_of_a_large_flat_vocabulary_needs_the_deeper_floors() -> None:
    rng = np.random.default_rng(5)
    for spread in (0.1, 2.0, 6.0):
        logits = (spread * rng.standard_normal(20_000)).astype(np.float32)
        for top_p in (0.2, 0.9, 0.9999):
            params = SamplingParams(top_p=top_p)
            expected = processed_probs(logits, params)
            # float32 may move the edge of the nucleus by a few of its least probable tokens
            assert 0.5 * np.abs(probabilities(logits, params) - expected).sum() < 1e-4, (spread, top_p)


def test_typical_of_a_large_vocabulary_needs_more_candidates() -> None:
    rng = np.random.default_rng(6)
    for spread in (0.1, 2.0, 5.0):
        logits = spread * rng.standard_normal(20_000)
        for typical_p in (0.02, 0.5, 0.95):
            params = SamplingParams(typical_p=typical_p)
            assert 0.5 * np.abs(probabilities(logits, params) - processed_probs(logits, params)).sum() < 1e-4, (
                spread,
                typical_p,
            )


def test_top_p_reached_exactly_keeps_no_more() -> None:
    logits = np.log(np.array([0.25, 0.5, 0.25]))
    assert support(probabilities(logits, SamplingParams(top_p=0.5))) == [1]
    assert support(probabilities(logits, SamplingParams(top_p=0.51))) == [0, 1]
    assert support(probabilities(np.zeros(4), SamplingParams(top_p=0.75))) == [0, 1, 2]


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    # 0.4 of 1 is short of 0.5, but 0.4 of the 0.7 that top-k leaves is not.
    assert support(probabilities(logits, SamplingParams(top_k=2, top_p=0.5))) == [0]
    assert support(probabilities(logits, SamplingParams(top_p=0.5))) == [0, 1]


@given(LOGITS, st.floats(0.0, 1.0), FLOATS)
def test_min_p_keeps_what_is_not_too_far_below_the_most_probable(values: list[float], min_p: float, dtype: str) -> None:
    full = probabilities(np.array(values, dtype=dtype), SamplingParams(temperature=1.7))
    if np.abs(full / full.max() - min_p).min() < 1e-5:
        return  # rounding may decide
    kept = support(probabilities(np.array(values, dtype=dtype), SamplingParams(temperature=1.7, min_p=min_p)))
    assert kept == support(np.where(full >= min_p * full.max(), full, 0.0))


def test_min_p_of_one_keeps_all_that_are_most_probable() -> None:
    assert support(probabilities(np.array([2.0, 1.0, 2.0]), SamplingParams(min_p=1.0))) == [0, 2]


def test_typical_may_leave_out_the_most_probable_token() -> None:
    logits = np.log(np.array([0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]))
    # The entropy is 1.75 nats: a surprisal of 2.3 is nearer to it than one of 0.92. Ties go to the lowest ids.
    assert support(probabilities(logits, SamplingParams(typical_p=0.45))) == [1, 2, 3, 4, 5]
    assert support(probabilities(logits, SamplingParams(typical_p=0.61))) == [0, 1, 2, 3, 4, 5, 6]
    assert support(probabilities(logits, SamplingParams(typical_p=0.45, top_k=1))) == [0]
    assert support(probabilities(logits, SamplingParams(typical_p=0.45, temperature=0.0))) == [0]


def test_temperature_comes_before_top_p() -> None:
    logits = np.log(np.array([0.6, 0.3, 0.1]))
    assert support(probabilities(logits, SamplingParams(top_p=0.6))) == [0]
    assert support(probabilities(logits, SamplingParams(temperature=2.0, top_p=0.6))) == [0, 1]


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(top_k=1)])
@given(values=LOGITS)
def test_greedy_is_one_hot_at_the_lowest_maximum(params: SamplingParams, values: list[float]) -> None:
    probs = probabilities(np.array(values, dtype=np.float32), params)
    assert support(probs) == [values.index(max(values))]
    assert probs[greedy_token(np.array(values))] == 1.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("temperature", [1e-320, 1e-40, 1e-6, 100.0])
def test_extreme_temperatures_give_a_distribution(dtype: str, temperature: float) -> None:
    logits: Weights = np.array([-3e38, 5.0, 3e38, 3e38, -np.inf], dtype=dtype)
    assert probabilities(logits, SamplingParams(temperature=temperature)).tolist() == [0.0, 0.0, 0.5, 0.5, 0.0]


@given(st.integers(1, 70), PARAMS, FLOATS, st.integers(0, 2**32))
def test_a_row_does_not_depend_on_where_it_lies(vocab: int, params: SamplingParams, dtype: str, seed: int) -> None:
    logits: Weights = np.random.default_rng(seed).standard_normal((3, vocab)).astype(dtype)
    for row in logits:
        assert np.array_equal(probabilities(row, params), probabilities(row.copy(), params))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([0.0, math.nan, 1.0], "nan at token id 1"),
        ([0.0, 1.0, math.inf], "inf at token id 2"),
        ([-math.inf, -math.inf], "every token is masked"),
    ],
)
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.0), SamplingParams(top_k=2)])
def test_logits_that_are_not_finite_are_refused(values: list[float], problem: str, params: SamplingParams) -> None:
    with pytest.raises(ValueError, match=f"logits are not finite: {problem}"):
        probabilities(np.array(values), params)
    with pytest.raises(ValueError, match=f"logits are not finite: {problem}"):
        greedy_token(np.array(values))


def test_wrong_types_and_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="float32 or float64, not float16"):
        probabilities(np.zeros(3, dtype=np.float16), SamplingParams())
    with pytest.raises(ValueError, match=r"not shape \(2, 3\)"):
        probabilities(np.zeros((2, 3)), SamplingParams())
    with pytest.raises(ValueError, match=r"not shape \(0,\)"):
        probabilities(np.zeros(0), SamplingParams())
