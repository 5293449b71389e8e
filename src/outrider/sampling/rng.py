"""Counter-based noise: every number is a hash of its key. There is no state and no order of drawing.

The mixing function is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014) with the shifts and multipliers of David Stafford's variant 13 of the MurmurHash3
finalizer. GAMMA is 2**64 divided by the golden ratio, rounded to an odd number, from the same paper. Token ids are
SplitMix64 counters, so the noise of one key over a vocabulary is a part of a SplitMix64 sequence.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outrider import native
from outrider.sampling.noise import STEP_PURPOSES, Purpose, Weights

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_ULP = 2.0**-53

# The same constants as NumPy scalars. Creating them costs as much as using them on a short array.
_N1, _N12, _N27, _N30, _N31 = (np.uint64(bits) for bits in (1, 12, 27, 30, 31))
_N_GAMMA, _N_FIRST, _N_SECOND = (np.uint64(constant) for constant in (_GAMMA, _FIRST, _SECOND))

SEED_MIN = -(2**63)
SEED_MAX = 2**64 - 1


def _mix(word: int) -> int:
    """A bijection of 64-bit words in which every input bit changes about half of the output bits."""
    word ^= word >> 30
    word = word * _FIRST & _MASK
    word ^= word >> 27
    word = word * _SECOND & _MASK
    return word ^ word >> 31


def _mix_array(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """``_mix`` of each word, in place."""
    words ^= words >> _N30
    words *= _N_FIRST
    words ^= words >> _N27
    words *= _N_SECOND
    words ^= words >> _N31
    return words


def _absorb(state: int, word: int) -> int:
    """The next state: a bijection of ``state`` for a fixed ``word``, and of ``word`` for a fixed ``state``."""
    return _mix((state + _GAMMA & _MASK) ^ _mix(word + _GAMMA & _MASK))


def derive_seed(seed: int, *indices: int) -> int:
    """A seed in [0, 2**64): a hash of ``seed`` and ``indices``, which are any integers. Their order matters.

    Example: ``derive_seed(engine_seed, request_number)`` gives each unseeded request different noise.
    """
    state = len(indices)
    for value in (seed, *indices):
        num_words = value.bit_length() // 64 + 1
        for word in range(num_words):
            state = _absorb(state, value >> 64 * word & _MASK)
        state = _absorb(state, num_words)
    return state


class KeyedNoise:
    """The ``Noise`` of one request: a hash of (seed, position, purpose, branch) and, in ``draw``, the token id.

    Seeds lie in [-2**63, 2**64), and each has different noise; raises ``ValueError`` for any other seed. ``at_step``
    adds the start of the step to the keys of ``STEP_PURPOSES``.
    """

    def __init__(self, seed: int, step: int | None = None) -> None:
        if not SEED_MIN <= seed <= SEED_MAX:
            raise ValueError(f"seed={seed!r} must be between -2**63 and 2**64 - 1")
        self.seed = seed
        self.step = step
        self._state = _absorb(0, seed & _MASK)
        self._negative = int(seed < 0)

    def key(self, position: int, purpose: Purpose, branch: int = 0) -> int:
        """The hash of the key, in [0, 2**64). ``draw`` hashes it again with each token id."""
        if self.step is not None and purpose in STEP_PURPOSES:
            position_state = _absorb(_absorb(self._state, position & _MASK), self.step & _MASK)
        else:
            position_state = _absorb(self._state, position & _MASK)
        # The sign is hashed too: -1 and 2**64 - 1 have the same 64 bits but need different noise.
        key = _absorb(position_state, 2 * purpose + self._negative)
        return _absorb(key, branch) if branch else key

    def at_step(self, start: int) -> KeyedNoise:
        """The noise for the step whose first new token has position ``start``."""
        # This runs in every step for every request, so it copies the state instead of hashing the seed again.
        noise = KeyedNoise.__new__(KeyedNoise)
        noise.seed, noise.step, noise._state, noise._negative = self.seed, start, self._state, self._negative
        return noise

    def uniform(self, position: int, purpose: Purpose, *, branch: int = 0) -> float:
        """A uniform number in (0, 1), ends excluded: an odd multiple of 2**-53."""
        return (_mix(self.key(position, purpose, branch)) >> 12 << 1 | 1) * _ULP

    def draw(self, weights: Weights, position: int, purpose: Purpose, *, branch: int = 0) -> int:
        """An index drawn with probability ``weights / weights.sum()``: the argmax of log(weight) + Gumbel noise.

        ``weights`` [vocab] must be non-negative with a positive finite sum; raises ``ValueError`` otherwise. The noise
        of an index does not depend on the other weights. Indices of weight 0 are skipped. Ties go to the lowest index.
        With u uniform and E = -log(u), the Gumbel noise is -log(E), so the argmax equals that of weight / E, which
        needs two logarithms less per index.
        """
        if not native.available():
            return numpy_draw(weights, self.key(position, purpose, branch))
        key = self.key(position, purpose, branch)
        index, total = native.library.draw(np.ascontiguousarray(weights, dtype=np.float64), key)
        if index < 0:
            raise _not_weights(total)
        return index


def numpy_draw(weights: Weights, key: int) -> int:
    """``KeyedNoise.draw`` in NumPy, where the native library is not built, and in tests as the reference for it."""
    ids = (weights != 0.0).nonzero()[0]
    support = weights[ids].astype(np.float64)
    total = float(np.add.reduce(support))
    if not 0.0 < total < np.inf or np.minimum.reduce(support) < 0.0:
        raise _not_weights(total)
    words = ids.astype(np.uint64)
    words += _N1
    words *= _N_GAMMA
    words += np.uint64(key)
    _mix_array(words)
    words >>= _N12
    words <<= _N1
    words |= _N1
    exponential = words.astype(np.float64)
    exponential *= _ULP
    np.log(exponential, out=exponential)
    # The divisor is -E, so the winner is the most negative quotient. Dividing by the total keeps values in range.
    support /= total
    support /= exponential
    return int(ids[support.argmin()])


def _not_weights(total: float) -> ValueError:
    return ValueError(f"cannot draw: weights must be non-negative with a positive finite sum, not {total!r}")
