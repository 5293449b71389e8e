"""Noise that takes every value: the exact distribution of a random procedure, computed by running every branch of it.

Each key (position, purpose, step, branch) has one uniform number. ``EnumeratingNoise`` keeps the interval that contains
it. A comparison or a draw splits the interval. Each part is a branch with the conditional probability part / whole, and
the branch that a run takes becomes the new interval. So noise that is used twice is the same number twice, and a
verifier that wrongly shares noise gets a wrong distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from typing import TypeVar

from outrider.errors import IntegrityError
from outrider.sampling.noise import STEP_PURPOSES, Purpose, Weights

Result = TypeVar("Result")
Key = tuple[int, Purpose, int | None, int]


@dataclass
class _Branch:
    """A branching point of a run: the options (index, probability), and the one that the current run takes."""

    options: tuple[tuple[int, float], ...]
    taken: int = 0


class EnumeratingNoise:
    """``Noise`` that follows ``script``. After its end it takes the first option of each branch and appends it.

    ``probability`` is the probability of the branches taken so far.
    """

    def __init__(self, script: list[_Branch] | None = None) -> None:
        self._script = [] if script is None else script
        self._depth = 0
        self._intervals: dict[Key, tuple[float, float]] = {}
        self.probability = 1.0

    def at_step(self, start: int) -> StepNoise:
        """This noise for the step whose first new token has position ``start``."""
        return StepNoise(self, start)

    def uniform(self, position: int, purpose: Purpose, *, branch: int = 0, step: int | None = None) -> SymbolicUniform:
        """The uniform number of this key, known only to lie in the interval that earlier comparisons left."""
        return SymbolicUniform(self, (position, purpose, step, branch))

    def draw(
        self, weights: Weights, position: int, purpose: Purpose, *, branch: int = 0, step: int | None = None
    ) -> int:
        """An index of positive weight: the one whose share of (0, 1) contains the key's uniform number.

        Raises ``ValueError`` unless ``weights`` [vocab] are non-negative with a positive finite sum.
        """
        # Plain Python is many times faster than arrays for a few weights.
        values = [float(weight) for weight in weights.tolist()]
        *_, total = cumulative = list(accumulate(values))
        if not 0.0 < total < inf or min(values) < 0.0:
            raise ValueError(f"cannot draw: weights must be non-negative with a positive finite sum, not {total!r}")
        edges = [0.0, *(mass / total for mass in cumulative)]
        return self.split((position, purpose, step, branch), edges)

    def split(self, key: Key, edges: Sequence[float]) -> int:
        """Branch over the parts [edges[i], edges[i+1]); return the index i of the part that the run takes."""
        low, high = self._intervals.get(key, (0.0, 1.0))
        parts = [(max(low, start), min(high, end)) for start, end in pairwise(edges)]
        options = tuple((i, (end - start) / (high - low)) for i, (start, end) in enumerate(parts) if end > start)
        index, probability = self._choose(options)
        self.probability *= probability
        self._intervals[key] = parts[index]
        return index

    def _choose(self, options: tuple[tuple[int, float], ...]) -> tuple[int, float]:
        if self._depth == len(self._script):
            self._script.append(_Branch(options))
        branch = self._script[self._depth]
        if branch.options != options:
            raise IntegrityError("an enumerated procedure behaved differently when run again; it must be deterministic")
        self._depth += 1
        return branch.options[branch.taken]


@dataclass(frozen=True)
class StepNoise:
    """``noise`` with ``STEP_PURPOSES`` keyed by the step that begins at ``start``."""

    noise: EnumeratingNoise
    start: int

    def at_step(self, start: int) -> StepNoise:
        """The noise for another step."""
        return StepNoise(self.noise, start)

    def uniform(self, position: int, purpose: Purpose, *, branch: int = 0) -> SymbolicUniform:
        """The uniform number of this key."""
        return self.noise.uniform(position, purpose, branch=branch, step=self._step(purpose))

    def draw(self, weights: Weights, position: int, purpose: Purpose, *, branch: int = 0) -> int:
        """An index drawn with probability proportional to ``weights`` [vocab]."""
        return self.noise.draw(weights, position, purpose, branch=branch, step=self._step(purpose))

    def _step(self, purpose: Purpose) -> int | None:
        return self.start if purpose in STEP_PURPOSES else None


class SymbolicUniform:
    """The number u of one key, times ``scale``. The comparison ``u * scale < bound`` branches over both answers."""

    def __init__(self, noise: EnumeratingNoise, key: Key, scale: float = 1.0) -> None:
        self._noise = noise
        self._key = key
        self._scale = scale

    def __mul__(self, scale: float, /) -> SymbolicUniform:
        return SymbolicUniform(self._noise, self._key, self._scale * scale)

    def __lt__(self, bound: float, /) -> bool:
        # u * 0 < bound does not depend on u, and neither does u * scale < bound with bound >= scale.
        threshold = float(bound > 0.0) if bound >= self._scale or self._scale == 0.0 else bound / self._scale
        return self._noise.split(self._key, (0.0, threshold, 1.0)) == 0


def enumerate_outcomes(run: Callable[[EnumeratingNoise], Result]) -> Iterator[tuple[float, Result]]:
    """(probability, ``run(noise)``) for every branch of ``run``. The probabilities sum to one.

    ``run`` must be a deterministic function of its noise. Raises ``IntegrityError`` if a repeated run differs.
    """
    script: list[_Branch] = []
    while True:
        noise = EnumeratingNoise(script)
        result = run(noise)
        yield noise.probability, result
        while script and script[-1].taken == len(script[-1].options) - 1:
            script.pop()
        if not script:
            return
        script[-1].taken += 1
