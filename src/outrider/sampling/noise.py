"""The one interface through which randomness enters: keyed, never in a stream.

A key is (seed, absolute position, purpose, branch). Two purposes never share noise, so a draft and the recovery after
it are independent. Within a step ``DRAFT`` and ``ACCEPT`` are keyed by the step as well: a draft that is thrown away
may have had a say in what was emitted before it, so the next draft at its place must not be drawn with its noise.
Drafts in a tree share positions; their ``branch`` tells them apart. All else has branch 0.
``KeyedNoise`` in rng.py is the engine's; audit/enumerate.py has one that branches over every outcome instead of
drawing, which is how distributions are proven exactly.
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


STEP_PURPOSES = frozenset({Purpose.DRAFT, Purpose.ACCEPT})
"""Noise for what one step tries and may throw away; all other noise makes the token that stays at its position."""


class Noise(Protocol):
    """Randomness of one request."""

    def at_step(self, start: int) -> Noise:
        """The same noise for the step whose first new token stands at ``start``.

        The ``STEP_PURPOSES`` have noise of their own in each step; for the others nothing changes.
        """
        ...

    def uniform(self, position: int, purpose: Purpose, *, branch: int = 0) -> Uniform:
        """The uniform number of this key; the same for every call with it."""
        ...

    def draw(self, weights: Weights, position: int, purpose: Purpose, *, branch: int = 0) -> int:
        """An index drawn with probability ``weights / weights.sum()``, a function of the key and ``weights``.

        ``weights`` [vocab] are non-negative with a positive finite sum; raises ``ValueError`` otherwise.
        An index of weight 0 is never returned.
        """
        ...
