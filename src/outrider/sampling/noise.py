"""The one interface through which randomness enters: keyed, never in a stream.

A key is (seed, absolute position, purpose). Two purposes never share noise, so a draft and the recovery after
it are independent. ``KeyedNoise`` in rng.py is the engine's; audit/enumerate.py has one that branches over
every outcome instead of drawing, which is how laws are proven exactly.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.floating[Any]]


class Purpose(IntEnum):
    """What noise is for."""

    TARGET = 0
    """Drawing the target's own token: plain sampling, and sample-and-match."""
    DRAFT = 1
    ACCEPT = 2
    RECOVER = 3
    BONUS = 4


class Uniform(Protocol):
    """A uniform number in (0, 1), of which verifiers may only ask ``u * scale < bound``."""

    def __mul__(self, scale: float, /) -> Uniform: ...

    def __lt__(self, bound: float, /) -> bool: ...


class Noise(Protocol):
    """Randomness of one request."""

    def uniform(self, position: int, purpose: Purpose) -> Uniform:
        """The uniform number of this key; the same for every call with it."""
        ...

    def draw(self, weights: Weights, position: int, purpose: Purpose) -> int:
        """An index drawn with probability ``weights / weights.sum()``, a function of the key and ``weights``.

        ``weights`` [vocab] are non-negative with a positive finite sum; raises ``ValueError`` otherwise.
        An index of weight 0 is never returned.
        """
        ...
