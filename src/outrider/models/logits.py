"""Scores of next tokens as they cross the model boundary: reduced where they lie, copied only where rows are asked for.

A decoder gives the logits of a pass as one object; ``logits[start:stop]`` is the part of one request. Knows nothing
about sampling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.floating[Any]]


class Logits(Protocol):
    """Logits of rows that follow each other, [rows, vocab], wherever a decoder keeps them."""

    known_argmax: list[int] | None
    """What ``argmax`` of all rows gives, if ``find_argmax`` has found it."""

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def __getitem__(self, part: slice, /) -> Logits:
        """Some of the rows, not copied."""
        ...

    def argmax(self, rows: slice | None = None) -> list[int]:
        """The most probable token of each row, or of those in ``rows``; among equals the lowest id.

        An empty list if the largest value of a row is not finite: NaN, or an infinity.
        """
        ...

    def row(self, index: int) -> Rows:
        """One row, [vocab], in float32 (toy models: float64). Not to be written to."""
        ...

    def rows(self, part: slice) -> Rows:
        """Some rows, [rows, vocab], as ``row`` gives each."""
        ...


@dataclass
class ArrayLogits:
    """``Logits`` in a C-contiguous NumPy array ``values`` [rows, vocab], float32 or float64."""

    values: Rows
    known_argmax: list[int] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> ArrayLogits:
        return ArrayLogits(self.values[part])

    def argmax(self, rows: slice | None = None) -> list[int]:
        """See ``Logits.argmax``."""
        if rows is None and self.known_argmax is not None:
            return self.known_argmax
        if rows is None and self.known_argmax is not None:
            return self.known_argmax
        chosen = self if rows is None else self[rows]
        return _argmax(chosen.values)

    def row(self, index: int) -> Rows:
        """See ``Logits.row``."""
        row: Rows = self.values[index]
        return row

    def rows(self, part: slice) -> Rows:
        """See ``Logits.rows``."""
        return self.values[part]


def find_argmax(groups: Sequence[Logits]) -> None:
    """Find ``argmax`` of each of ``groups``, so that asking for it again takes no time."""
    for logits in groups:
        logits.known_argmax = logits.argmax()


def _argmax(values: Rows) -> list[int]:
    ids: list[int] = values.argmax(axis=1).tolist()  # of a row with a NaN, the place of the NaN
    return ids if all(math.isfinite(values[row, token_id]) for row, token_id in enumerate(ids)) else []
