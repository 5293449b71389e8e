"""The interface for all randomness. Noise is a function of a key; there is no stream and no order of drawing.

A key is (seed, absolute position, purpose, branch). Two purposes never share noise, so a draft and the recovered token
that replaces it are independent. ``DRAFT`` and ``ACCEPT`` noise is also keyed by the step: a rejected draft can have
influenced which tokens before it were accepted, so the next draft at its position needs new noise. Drafts in a tree can
share a position; their ``branch`` tells them apart. All other noise has branch 0.

``KeyedNoise`` in rng.py is the engine's implementation. ``EnumeratingNoise`` in audit/enumerate.py follows every
outcome instead of drawing one, so that the audit computes exact distributions.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.floating[Any]]


class Purpose(IntEnum):
    """The use of a random number; part of its key."""

    TARGET = 0
    """Draw the target's own token, in plain sampling and in sample-and-match."""
    DRAFT = 1
    """Draw a draft token."""
    ACCEPT = 2
    """Accept or reject a draft."""
    RECOVER = 3
    """Draw a recovered token from the residual."""
    BONUS = 4
    """Draw the bonus token after all drafts were accepted."""


class Uniform(Protocol):
    """A uniform number u in (0, 1). Verifiers use it only in comparisons ``u * scale < bound``."""

    def __mul__(self, scale: float, /) -> Uniform: ...

    def __lt__(self, bound: float, /) -> bool: ...


STEP_PURPOSES = frozenset({Purpose.DRAFT, Purpose.ACCEPT})
"""Purposes whose noise is keyed by the step too, because their result can be discarded at the end of the step."""


class Noise(Protocol):
    """The randomness of one request."""

    def at_step(self, start: int) -> Noise:
        """The noise for the step whose first new token has position ``start``.

        ``start`` enters the keys of ``STEP_PURPOSES`` only.
        """
        ...

    def uniform(self, position: int, purpose: Purpose, *, branch: int = 0) -> Uniform:
        """The uniform number of this key. Every call with the same key returns the same number."""
        ...

    def draw(self, weights: Weights, position: int, purpose: Purpose, *, branch: int = 0) -> int:
        """An index drawn with probability ``weights / weights.sum()``; a function of the key and ``weights`` alone.

        ``weights`` [vocab] must be non-negative with a positive finite sum; raises ``ValueError`` otherwise. An index
        of weight 0 is never returned.
        """
        ...
