"""Draw the target's own token from a row of logits, in one native call where possible."""

from __future__ import annotations

from outrider import native
from outrider.sampling.noise import Noise, Purpose, Weights
from outrider.sampling.probabilities import native_options, native_row, not_finite, probabilities
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams


def draw_token(logits: Weights, params: SamplingParams, noise: Noise, position: int) -> int:
    """Draw a token from ``logits`` [vocab] as ``noise.draw(probabilities(logits, params), position, TARGET)`` does.

    The native draw does not compute the distribution. It skips tokens that cannot win, and it does not divide the
    weights by their sum.

    Rounding: both draws return the token with the largest weight / E, where E is the token's exponential noise. Both
    use the same float64 weights and the same E. This draw rounds the quotient once. The draw from ``probabilities``
    rounds three times: it divides by the sum, by the sum of the result, and by E. One rounding is at most a relative
    2^-53, so the two draws can return different tokens only if the two largest quotients agree within a relative
    2^-50. With continuous noise the probability of that is below 2^-50 per draw, so the two distributions differ by
    less than 2^-50 in total variation.

    The engine draws every TARGET token with this function, with and without drafts. So this rounding cannot make
    output depend on speculation. It can only make a draft that is coupled with the TARGET noise miss the target's
    token.

    Raises ``ValueError`` as ``probabilities`` does.
    """
    if not native.available() or params.greedy or type(noise) is not KeyedNoise:
        return noise.draw(probabilities(logits, params), position, Purpose.TARGET)
    key = noise.key(position, Purpose.TARGET)
    token_id = native.library.draw_token(native_row(logits), key, **native_options(params))
    if token_id is None:
        raise not_finite(logits)
    return token_id
