"""Seconds of a forward pass by its rows and the context that they read, and of what follows it. No clock."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

_LEVEL_RATE = 0.2
_SHAPE_RATE = 0.02
OVERHEAD_RATE = 0.05
"""Weight of a new observation in the decayed means of the times outside the pass."""
_LARGEST_ERROR = 0.5
"""An interrupted pass takes several times as long. Errors of a prediction, as logarithms, are cut off here."""


@dataclass(frozen=True)
class PassLoad:
    """What one pass holds.

    rows      tokens fed, of all requests
    context   tokens in the caches of its requests after the pass
    attended  keys read, summed over all rows
    requests  requests that take part
    """

    rows: int = 0
    context: int = 0
    attended: int = 0
    requests: int = 0

    @classmethod
    def of(cls, parts: Iterable[tuple[int, int]]) -> PassLoad:
        """A pass over ``parts``, one for each request: tokens computed before, and rows in this pass."""
        rows = context = attended = requests = 0
        for computed, fed in parts:
            rows += fed
            context += computed + fed
            attended += fed * (computed + fed) - fed * (fed - 1) // 2
            requests += 1
        return cls(rows, context, attended, requests)


class PassCosts:
    """Seconds of a pass: ``level * (f(rows) + per_context * context + per_attended * attended)``.

    f is measured at some numbers of rows. It is linear between them and beyond the last. The *level* follows within a
    few passes whatever makes all passes slower or faster, such as another process on the machine. f itself, which
    decides how many rows pay, moves slowly towards the observed times.
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

    def seconds(self, load: PassLoad) -> float:
        """Seconds of one pass."""
        reading = self._per_context * load.context + self._per_attended * load.attended
        return self._level * (self._of_rows(load.rows) + reading)

    def with_more_rows(self, load: PassLoad, most: int) -> list[float]:
        """Seconds [most + 1] of ``load`` with 0, 1 … ``most`` rows more, each of which reads a mean context."""
        per_row = self._per_attended * load.attended / max(load.rows, 1)
        reading = self._per_context * load.context + self._per_attended * load.attended
        return [self._level * (self._of_rows(load.rows + more) + reading + per_row * more) for more in range(most + 1)]

    def observe(self, load: PassLoad, seconds: float) -> None:
        """Learn from a pass that took ``seconds``."""
        if load.rows < 1 or seconds <= 0.0:
            return
        error = math.log(seconds / self.seconds(load))
        error = min(max(error, -_LARGEST_ERROR), _LARGEST_ERROR)
        self._level *= math.exp(_LEVEL_RATE * error)
        high = min(bisect_left(self._rows, load.rows), len(self._rows) - 1)
        low = high if high == 0 or self._rows[high] <= load.rows else high - 1
        share = 0.0 if low == high else (load.rows - self._rows[low]) / (self._rows[high] - self._rows[low])
        self._seconds[low] *= math.exp(_SHAPE_RATE * (1.0 - share) * error)
        if share:
            self._seconds[high] *= math.exp(_SHAPE_RATE * share * error)
        self._shape = self._monotone()

    def rescale(self, measured: Mapping[int, float], tolerance: float) -> bool:
        """Take ``measured`` seconds by rows, without context, for the present level, if the table's shape holds.

        False, with nothing changed, if the measured times relative to the table differ from each other by more than
        ``tolerance``.
        """
        if not measured or min(measured.values()) <= 0.0:
            return False
        ratios = [seconds / self._of_rows(rows) for rows, seconds in measured.items()]
        if max(ratios) > (1.0 + tolerance) * min(ratios):
            return False
        self._level = min(ratios)
        return True

    def to_dict(self) -> dict[str, object]:
        """The table as JSON takes it, at its present level; ``from_dict`` reads it."""
        return {
            "seconds_by_rows": {str(rows): seconds for rows, seconds in self.table().items()},
            "per_context": self._level * self._per_context,
            "per_attended": self._level * self._per_attended,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PassCosts:
        """The table that ``to_dict`` wrote. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        table = {int(rows): float(seconds) for rows, seconds in values["seconds_by_rows"].items()}
        contexts = float(values["per_context"]), float(values["per_attended"])
        if not all(map(math.isfinite, (*table.values(), *contexts))):
            raise ValueError("a time is not finite")
        return cls(table, per_context=contexts[0], per_attended=contexts[1])

    def table(self) -> dict[int, float]:
        """Present estimate of seconds by rows, without context."""
        return {rows: self._level * seconds for rows, seconds in zip(self._rows, self._shape, strict=True)}

    def _monotone(self) -> list[float]:
        """More rows never cost less; a measurement that says otherwise is noise."""
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
    """Seconds of one round of a drafter with a model: a pass over what it has not computed, then one for each level.

    Without ``passes`` every token costs the same. The level is learnt from the rounds.
    """

    def __init__(self, passes: PassCosts | None = None) -> None:
        self.passes = passes or PassCosts({1: 1e-3})
        self._factor = 1.0

    def seconds(self, requests: int, depth: int, uncomputed: int, context: int = 0) -> float:
        """Seconds for ``depth`` tokens for each of ``requests``.

        The requests hold ``context`` tokens in all, of which the drafter has not computed ``uncomputed``.
        """
        if not requests or not depth:
            return 0.0
        first = self.passes.seconds(PassLoad(requests + uncomputed, context, context))
        level = self.passes.seconds(PassLoad(requests, context, context))
        return self._factor * (first + (depth - 1) * level)

    def observe(self, predicted: float, seconds: float) -> None:
        """Learn from a round that took ``seconds`` where ``seconds()`` gave ``predicted``."""
        if predicted > 0.0 and seconds > 0.0:
            error = min(max(math.log(seconds / predicted), -_LARGEST_ERROR), _LARGEST_ERROR)
            self._factor *= math.exp(_LEVEL_RATE * error)


class RowCosts:
    """Seconds after the forward pass (probabilities, draws, verification, text) for one request.

    ``first`` is the time for its first scored row, ``further`` for each further row.
    """

    def __init__(self) -> None:
        self.first = 0.0
        self._further: float | None = None

    @property
    def further(self) -> float:
        """Half of ``first`` until it is known."""
        return 0.5 * self.first if self._further is None else self._further

    def observe(self, rows: int, seconds: float) -> None:
        """Learn that ``rows`` rows of a request took ``seconds`` after the pass."""
        if rows == 1:
            self.first = seconds if not self.first else self.first + OVERHEAD_RATE * (seconds - self.first)
        elif rows > 1 and self.first:
            further = max(seconds - self.first, 0.0) / (rows - 1)
            self._further = (
                further if self._further is None else self._further + OVERHEAD_RATE * (further - self._further)
            )
