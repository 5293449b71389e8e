"""Log-probabilities of a row of logits. The result depends on that row alone."""

from __future__ import annotations

import numpy as np

from outrider import native
from outrider.outputs import TokenLogprobs
from outrider.sampling.noise import Weights
from outrider.sampling.probabilities import greedy_token, native_row, not_finite


def log_softmax(logits: Weights) -> Weights:
    """Natural logarithm [vocab] of the softmax of ``logits`` [vocab].

    Raises ``ValueError`` if a logit is NaN or +inf, or if all are -inf.
    """
    shifted = logits - logits[greedy_token(logits)]
    result: Weights = shifted - np.log(np.exp(shifted).sum())
    return result


def report_of_logits(logits: Weights, token_id: int, num_top: int) -> TokenLogprobs:
    """``report(log_softmax(logits), token_id, num_top)`` for float32 or float64 ``logits`` [vocab].

    The native version does not compute the whole log-softmax. Raises ``ValueError`` as ``log_softmax`` does.
    """
    if not native.available():
        return report(log_softmax(logits.astype(np.float64)), token_id, num_top)
    made = native.library.token_report(native_row(logits), token_id, num_top)
    if made is None:
        raise not_finite(logits)
    logprob, rank, top = made
    return TokenLogprobs(token_id, logprob, rank, tuple(top))


def report(logprobs: Weights, token_id: int, num_top: int) -> TokenLogprobs:
    """The log-probability and rank of ``token_id``, and the ``num_top`` most probable tokens, from a row [vocab].

    Rank 1 is the most probable token. Ties go to the lowest id. Tokens of probability 0 are not listed among the top.
    """
    own = logprobs[token_id]
    rank = 1 + int(np.count_nonzero(logprobs > own)) + int(np.count_nonzero(logprobs[:token_id] == own))
    top: list[tuple[int, float]] = []
    if num_top:
        least = max(logprobs.size - num_top, 0)
        ids = np.flatnonzero(logprobs >= np.partition(logprobs, least)[least])
        best = ids[np.argsort(-logprobs[ids], kind="stable")][:num_top]
        top = [(int(i), float(logprobs[i])) for i in best if logprobs[i] > -np.inf]
    return TokenLogprobs(token_id, float(own), rank, tuple(top))
