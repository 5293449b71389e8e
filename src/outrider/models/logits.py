"""Scores of next tokens as they cross the model boundary: reduced where they lie, copied only where rows are asked for.

A decoder gives the logits of a pass as one object; ``logits[start:stop]`` is the part of one request. Knows nothing
about sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outrider import native

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
        return greedy_ids([chosen])[0]

    def row(self, index: int) -> Rows:
        """See ``Logits.row``."""
        row: Rows = self.values[index]
        return row

    def rows(self, part: slice) -> Rows:
        """See ``Logits.rows``."""
        return self.values[part]


def find_argmax(groups: Sequence[Logits]) -> None:
    """Find ``argmax`` of each of ``groups``, all in one go, so that asking for it takes no time."""
    for logits, ids in zip(groups, greedy_ids(groups) if groups else [], strict=True):
        logits.known_argmax = ids


def greedy_ids(groups: Sequence[Logits]) -> list[list[int]]:
    """``argmax`` of each of ``groups``; those of the native decoder all in one call, shared by its threads."""
    arrays = [group.values for group in groups if isinstance(group, ArrayLogits)]
    if len(arrays) < len(groups):
        return [group.argmax() for group in groups]
    if native.available() and all(array.dtype == np.float32 for array in arrays):
        return native.library.greedy_ids(arrays)
    return [_numpy_argmax(array) for array in arrays]


def _numpy_argmax(values: Rows) -> list[int]:
    ids = values.argmax(axis=1)  # of a row with a NaN, where that is
    largest = np.take_along_axis(values, ids[:, None], axis=1)
    return [int(token_id) for token_id in ids] if np.isfinite(largest).all() else []
