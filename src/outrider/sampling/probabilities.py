"""The one function from logits to probabilities. Plain sampling, verifiers and drafters all use it.

The stages are, in this order: temperature, top-k, top-p, min-p, typical. Edits of logits come before them, in
request_sampler.py. The result for a row depends on that row alone, bit for bit. This module knows nothing about
requests, models or randomness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider import native
from outrider.sampling.noise import Weights
from outrider.sampling_params import DISTRIBUTION_PARAMETERS, SamplingParams

# Top-p sorts only the weights above a floor: the first of these floors above which the mass reaches top_p.
_NUCLEUS_FLOORS = (1e-2, 1e-4, 1e-7, 0.0)

_TYPICAL_CANDIDATES = 1024
"""Number of most typical tokens that are sorted first. It grows eightfold while their mass is below typical_p."""


def greedy_token(logits: Weights) -> int:
    """The most probable token of ``logits`` [vocab]: the lowest id among the maxima.

    -inf masks a token. Raises ``ValueError`` if a logit is NaN or +inf, or if all are -inf.
    """
    _check_shape(logits)
    token_id = int(np.argmax(logits))  # NumPy's argmax returns a NaN if there is one, so one check is enough
    if not np.isfinite(logits[token_id]):
        raise not_finite(logits)
    return token_id


def _check_shape(logits: Weights) -> None:
    if logits.ndim != 1 or logits.size == 0:
        raise ValueError(f"logits must be one row [vocab] with at least one token, not shape {logits.shape}")


def native_row(logits: Weights) -> Weights:
    """``logits`` [vocab] as a contiguous array, float32 or float64; raises ``ValueError`` for any other input."""
    _check_shape(logits)
    if logits.dtype not in (np.float32, np.float64):
        raise ValueError(f"logits must be float32 or float64, not {logits.dtype}")
    return np.ascontiguousarray(logits)


def not_finite(logits: Weights) -> ValueError:
    """The error for ``logits`` [vocab] that contain a NaN or +inf, or that are all -inf."""
    token_id = int(np.argmax(logits))
    value = float(logits[token_id])
    if value == -np.inf:
        return ValueError("logits are not finite: every token is masked with -inf")
    return ValueError(f"logits are not finite: {value!r} at token id {token_id}")


def probabilities(logits: Weights, params: SamplingParams) -> Weights:
    """Probabilities [vocab] in float64 of the next token under ``params``, from float32 or float64 ``logits`` [vocab].

    temperature  logits / temperature; greedy parameters give a one-hot at the lowest id among the maxima
    top_k        exactly the k most probable tokens stay, ties by lowest id
    top_p        the smallest set of most probable tokens whose mass reaches top_p stays, ties by lowest id
    min_p        tokens at least min_p times as probable as the most probable one stay (Nguyen et al., arXiv 2407.01082)
    typical_p    the smallest set of tokens whose surprisal is nearest to the entropy and whose mass reaches typical_p
                 stays, ties by lowest id (Meister et al., arXiv 2202.00666)

    min_p and typical_p use the renormalised result of the stages before them.

    -inf masks a token. Raises ``ValueError`` if ``logits`` are not float32 or float64, if one is NaN or +inf, or
    if all are -inf.
    """
    row = native_row(logits)
    if params.greedy:
        return _spread(greedy_token(row), 1.0, row.size)
    if not native.available():
        return numpy_probabilities(row, params)
    made = native.library.probabilities(row, **native_options(params))
    if made is None:
        raise not_finite(logits)
    if isinstance(made, tuple):
        ids, weights = made
        return _spread(ids, weights, logits.size)
    dense: Weights = made
    return dense


def native_options(params: SamplingParams) -> dict[str, Any]:
    """The parameters of the stages as keyword arguments of the native routines."""
    return {name: getattr(params, name) for name in DISTRIBUTION_PARAMETERS}


def _spread(ids: int | NDArray[np.int64], weights: float | Weights, size: int) -> Weights:
    """A row [size] with ``weights`` at ``ids`` and zero elsewhere."""
    probs = np.zeros(size)
    probs[ids] = weights
    return probs


def numpy_probabilities(logits: Weights, params: SamplingParams) -> Weights:
    """``probabilities`` in NumPy, for parameters that are not greedy.

    Used where the native library is not built, and in tests as the reference for it.
    """
    logits = logits.astype(np.float64)
    best = greedy_token(logits)
    # Temperature does not change the order, so top-k selects by logits and saves exponentials.
    ids = _top_k_ids(logits, params.top_k)
    weights = _softmax_weights(logits if ids is None else logits[ids], logits[best], params.temperature)
    for kept in _truncations(params):
        places = kept(weights)
        weights = weights[places]
        ids = places if ids is None else ids[places]
    weights /= float(weights.sum(dtype=np.float64))
    return weights if ids is None else _spread(ids, weights, logits.size)


def _truncations(params: SamplingParams) -> Iterator[Callable[[Weights], NDArray[np.intp]]]:
    """One function per truncation, from weights (the largest is 1) to the ascending indices that stay."""
    if params.top_p < 1.0:
        yield lambda weights: _top_p_ids(weights, params.top_p)
    if params.min_p > 0.0:
        yield lambda weights: np.flatnonzero(weights >= params.min_p)
    if params.typical_p < 1.0:
        yield lambda weights: _typical_ids(weights, params.typical_p)


def _softmax_weights(logits: Weights, peak: np.floating[Any], temperature: float) -> Weights:
    """exp((logits - peak) / temperature); the largest is 1."""
    # A temperature that rounds to zero in this float type would give 0 / 0 at the peak.
    divisor = max(temperature, float(np.finfo(logits.dtype).tiny))
    with np.errstate(over="ignore", under="ignore"):
        weights = logits - peak
        weights /= divisor
        np.exp(weights, out=weights)
    return weights


def _top_k_ids(logits: Weights, top_k: int) -> NDArray[np.intp] | None:
    """The ids, ascending, of the ``top_k`` largest logits, ties by lowest id; None keeps all."""
    if not 0 < top_k < logits.size:
        return None
    threshold = np.partition(logits, logits.size - top_k)[logits.size - top_k]
    keep = logits > threshold
    ties = np.flatnonzero(logits == threshold)
    keep[ties[: top_k - np.count_nonzero(keep)]] = True
    return np.flatnonzero(keep)


def _top_p_ids(weights: Weights, top_p: float) -> NDArray[np.intp]:
    """The ids, ascending, of the smallest set of largest weights whose share reaches ``top_p``; the largest is 1."""
    mass = top_p * float(weights.sum(dtype=np.float64))
    for floor in _NUCLEUS_FLOORS:
        candidates = np.flatnonzero(weights > floor)
        if float(weights[candidates].sum(dtype=np.float64)) >= mass:
            break
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    cumulative = np.cumsum(weights[order], dtype=np.float64)
    return np.sort(order[: int(np.searchsorted(cumulative, mass)) + 1])


def _typical_ids(weights: Weights, typical_p: float) -> NDArray[np.intp]:
    """The ids, ascending, of the smallest set of most typical weights whose share reaches ``typical_p``."""
    ids = np.flatnonzero(weights)
    probs = weights[ids].astype(np.float64)
    probs /= probs.sum()
    surprisal = -np.log(probs)
    distance = np.abs(surprisal - float(probs @ surprisal))
    candidates, count = np.arange(ids.size), _TYPICAL_CANDIDATES
    while count < ids.size:  # sort all tokens only if the nearest ones do not hold the mass
        nearest = np.flatnonzero(distance <= np.partition(distance, count)[count])
        if float(probs[nearest].sum()) > typical_p + 1e-9:
            candidates = nearest
            break
        count *= 8
    order = candidates[np.argsort(distance[candidates], kind="stable")]
    cumulative = np.cumsum(probs[order])
    return np.sort(ids[order[: int(np.searchsorted(cumulative, typical_p)) + 1]])
