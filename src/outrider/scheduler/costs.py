"""What a forward pass costs, by how many rows it has and how much context they read. No tensors, no clock."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

_LEVEL_RATE = 0.2
_SHAPE_RATE = 0.02
SLOW = 0.05
"""What one more observation weighs among those of the times beside the pass."""
_LARGEST_SURPRISE = 0.5
"""A pass that was interrupted took several times as long; more than this, as a logarithm, is not learnt from it."""


@dataclass(frozen=True)
class Load:
    """A pass: its rows, the tokens of context that its requests hold, those summed over all rows; how many requests."""

    rows: int = 0
    context: int = 0
    attended: int = 0
    requests: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(
            self.rows + other.rows,
            self.context + other.context,
            self.attended + other.attended,
            self.requests + other.requests,
        )


class PassCosts:
    """Seconds of a pass: ``level * (f(rows) + per_context * context + per_attended * attended)``.

    f is measured at some numbers of rows, linear between them and beyond the last. The *level* follows whatever makes
    all passes slower or faster, such as a neighbour on the machine, within a few passes; f itself, which decides how
    many rows pay, moves slowly towards what is observed.
    """

    def __init__(
        self, seconds_by_rows: Mapping[int, float], *, per_context: float = 0.0, per_attended: float = 0.0
    ) -> None:
        """Raises ``ValueError`` unless there is at least one number of rows >= 1, each with a time above 0."""
        if not seconds_by_rows or min(seconds_by_rows) < 1 or min(seconds_by_rows.values()) <= 0.0:
            raise ValueError(f"seconds_by_rows={dict(seconds_by_rows)!r} must give a time above 0 for 1 or more rows")
        self._rows = sorted(seconds_by_rows)
        self._seconds = [seconds_by_rows[rows] for rows in self._rows]
        self._per_context = max(per_context, 0.0)
        self._per_attended = max(per_attended, 0.0)
        self._level = 1.0
        self._shape = self._monotone()

    def seconds(self, load: Load) -> float:
        """What one pass takes."""
        reading = self._per_context * load.context + self._per_attended * load.attended
        return self._level * (self._of_rows(load.rows) + reading)

    def after(self, load: Load, most: int) -> list[float]:
        """Seconds [most + 1] of ``load`` with 0, 1 … ``most`` rows more, each attending to a mean context."""
        per_row = self._per_attended * load.attended / max(load.rows, 1)
        reading = self._per_context * load.context + self._per_attended * load.attended
        return [self._level * (self._of_rows(load.rows + more) + reading + per_row * more) for more in range(most + 1)]

    def observe(self, load: Load, seconds: float) -> None:
        """Learn from a pass that took ``seconds``."""
        if load.rows < 1 or seconds <= 0.0:
            return
        surprise = math.log(seconds / self.seconds(load))
        surprise = min(max(surprise, -_LARGEST_SURPRISE), _LARGEST_SURPRISE)
        self._level *= math.exp(_LEVEL_RATE * surprise)
        high = min(bisect_left(self._rows, load.rows), len(self._rows) - 1)
        low = high if high == 0 or self._rows[high] <= load.rows else high - 1
        share = 0.0 if low == high else (load.rows - self._rows[low]) / (self._rows[high] - self._rows[low])
        self._seconds[low] *= math.exp(_SHAPE_RATE * (1.0 - share) * surprise)
        if share:
            self._seconds[high] *= math.exp(_SHAPE_RATE * share * surprise)
        self._shape = self._monotone()

    def table(self) -> dict[int, float]:
        """Seconds by rows, without context, as they are taken to be now."""
        return {rows: self._level * seconds for rows, seconds in zip(self._rows, self._shape, strict=True)}

    def _monotone(self) -> list[float]:
        """More rows never cost less; what was measured otherwise was noise."""
        return list(accumulate(self._seconds, max))

    def _of_rows(self, rows: int) -> float:
        known, shape = self._rows, self._shape
        high = bisect_left(known, rows)
        if high == 0:
            return shape[0]
        if high == len(known):
            if high == 1:
                return shape[0] * rows / known[0]
            # Tiles of rows make stairs: the last two may stand on one, so it rises at least as on the whole.
            last, first = len(known) - 1, 0
            rise = max(
                (shape[last] - shape[last - 1]) / (known[last] - known[last - 1]),
                (shape[last] - shape[first]) / (known[last] - known[first]),
            )
            return shape[last] + rise * (rows - known[last])
        low = high - 1
        return shape[low] + (shape[high] - shape[low]) * (rows - known[low]) / (known[high] - known[low])


class DraftCosts:
    """Seconds of one call of a drafter: a pass that makes good what it lacks, then one for each further level.

    Without ``passes`` each token is taken to cost the same; the level is learnt from the calls.
    """

    def __init__(self, passes: PassCosts | None = None) -> None:
        self._passes = passes or PassCosts({1: 1e-3})
        self._factor = 1.0

    def seconds(self, requests: int, depth: int, behind: int, context: int = 0) -> float:
        """``requests`` of ``context`` tokens in all, ``behind`` tokens not computed yet, ``depth`` tokens for each."""
        if not requests or not depth:
            return 0.0
        first = self._passes.seconds(Load(requests + behind, context, context))
        level = self._passes.seconds(Load(requests, context, context))
        return self._factor * (first + (depth - 1) * level)

    def observe(self, predicted: float, seconds: float) -> None:
        """Learn from a call that took ``seconds`` where ``seconds()`` said ``predicted``."""
        if predicted > 0.0 and seconds > 0.0:
            surprise = min(max(math.log(seconds / predicted), -_LARGEST_SURPRISE), _LARGEST_SURPRISE)
            self._factor *= math.exp(_LEVEL_RATE * surprise)


class RowCosts:
    """Seconds after the pass (distribution, draws, verification, text) for a request: of its first row, and of each
    further."""

    def __init__(self) -> None:
        self.first = 0.0
        self._further: float | None = None

    @property
    def further(self) -> float:
        """Until it is known, half of the first."""
        return 0.5 * self.first if self._further is None else self._further

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from so many rows of a request that took ``seconds`` after the pass."""
        if rows == 1:
            self.first = seconds if not self.first else self.first + SLOW * (seconds - self.first)
        elif rows > 1 and self.first:
            further = max(seconds - self.first, 0.0) / (rows - 1)
            self._further = further if self._further is None else self._further + SLOW * (further - self._further)
