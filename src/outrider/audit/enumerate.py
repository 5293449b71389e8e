"""Noise that takes every value: distributions of random procedures computed exactly by running them along every branch.

``EnumeratingNoise`` keeps, for each key (position, purpose, step, branch), the interval in which that key's one uniform
number still lies. A comparison or a draw splits the interval, each part being a branch of conditional probability
part / whole; the branch taken narrows it. So noise used twice is one number used twice, and a verifier that shares
noise where it must not gets a wrong distribution rather than a lucky one.
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
    """A point where the run forks: the options of positive probability, and which one this run takes."""

    options: tuple[tuple[int, float], ...]
    taken: int = 0


class EnumeratingNoise:
    """``Noise`` that follows ``script`` and, past its end, takes first options and writes them down.

    ``probability`` is that of the branch followed so far.
    """

    def __init__(self, script: list[_Branch] | None = None) -> None:
        self._script = [] if script is None else script
        self._depth = 0
        self._intervals: dict[Key, tuple[float, float]] = {}
        self.probability = 1.0

    def at_step(self, start: int) -> StepNoise:
        """This noise for the step whose first new token stands at ``start``."""
        return StepNoise(self, start)

    def uniform(self, position: int, purpose: Purpose, *, branch: int = 0, step: int | None = None) -> SymbolicUniform:
        """The uniform number of this key, not yet settled further than earlier questions settled it."""
        return SymbolicUniform(self, (position, purpose, step, branch))

    def draw(
        self, weights: Weights, position: int, purpose: Purpose, *, branch: int = 0, step: int | None = None
    ) -> int:
        """An index of positive weight: the one whose share of (0, 1) the key's uniform number falls into.

        Raises ``ValueError`` if ``weights`` [vocab] are negative or have no positive finite sum.
        """
        # Plain Python: on a handful of weights it is many times faster than arrays.
        values = [float(weight) for weight in weights.tolist()]
        *_, total = cumulative = list(accumulate(values))
        if not 0.0 < total < inf or min(values) < 0.0:
            raise ValueError(f"cannot draw: weights must be non-negative with a positive finite sum, not {total!r}")
        edges = [0.0, *(mass / total for mass in cumulative)]
        return self.split((position, purpose, step, branch), edges)

    def split(self, key: Key, edges: Sequence[float]) -> int:
        """The index i of the part [edges[i], edges[i+1]) that holds the key's number, after branching over all."""
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
            raise IntegrityError("an enumerated procedure took another course when run again; it must be deterministic")
        self._depth += 1
        return branch.options[branch.taken]


@dataclass(frozen=True)
class StepNoise:
    """``noise`` with ``STEP_PURPOSES`` keyed by the step that begins at ``start``."""

    noise: EnumeratingNoise
    start: int

    def at_step(self, start: int) -> StepNoise:
        """The same for another step."""
        return StepNoise(self.noise, start)

    def uniform(self, position: int, purpose: Purpose, *, branch: int = 0) -> SymbolicUniform:
        """The uniform number of this key."""
        return self.noise.uniform(position, purpose, branch=branch, step=self._step(purpose))

    def draw(self, weights: Weights, position: int, purpose: Purpose, *, branch: int = 0) -> int:
        """An index drawn by ``weights`` [vocab]."""
        return self.noise.draw(weights, position, purpose, branch=branch, step=self._step(purpose))

    def _step(self, purpose: Purpose) -> int | None:
        return self.start if purpose in STEP_PURPOSES else None


class SymbolicUniform:
    """The number u of one key, times ``scale``; answers ``u * scale < bound`` by branching."""

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
    """(probability, ``run(noise)``) for every branch of ``run``; the probabilities sum to one.

    ``run`` must be deterministic but for its noise; raises ``IntegrityError`` where that shows.
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
