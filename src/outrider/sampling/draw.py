"""The next token of a row of logits by a request's distribution and noise, in one native call where that can be."""

from __future__ import annotations

from outrider import native
from outrider.sampling.noise import Noise, Purpose, Weights
from outrider.sampling.probabilities import native_options, native_row, not_finite, probabilities
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams


def draw_token(logits: Weights, params: SamplingParams, noise: Noise, position: int) -> int:
    """``noise.draw(probabilities(logits, params), position, Purpose.TARGET)`` from ``logits`` [vocab], without making
    the distribution.

    A native draw gives weights to the tokens that may win only, and leaves them as they are where the distribution
    would divide them by their sum: rounding apart, which no draw has been seen to turn on, the two agree. Raises as
    ``probabilities`` does.
    """
    if not native.available() or params.greedy or type(noise) is not KeyedNoise:
        return noise.draw(probabilities(logits, params), position, Purpose.TARGET)
    key = noise.key(position, Purpose.TARGET)
    token_id = native.library.draw_token(native_row(logits), key, **native_options(params))
    if token_id is None:
        raise not_finite(logits)
    return token_id
