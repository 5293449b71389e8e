"""The logits of one request's scored rows, as they cross the boundary from a model to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.ops import native

Row = NDArray[np.floating[Any]]


class Logits:
    """``values`` [rows, vocab]."""

    def __init__(self, values: Any) -> None:
        self.values = values
        self._argmax: list[int] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def last(self, count: int) -> Logits:
        """The last ``count`` rows."""
        return self if count == len(self) else Logits(self.values[len(self) - count :])

    def argmax(self) -> list[int]:
        """The most probable token of each row. Raises ``ValueError`` if a largest value is not finite."""
        if self._argmax is None:
            find_argmax([self])
        if not self._argmax:
            raise ValueError("the target's logits are not finite (NaN or infinity); the model or its input is broken")
        return self._argmax

    def row(self, index: int) -> Row:
        """One row [vocab]."""
        return native.as_array(self.values[index])


def find_argmax(groups: Sequence[Logits]) -> None:
    """Find the argmax of all rows of all ``groups`` at once."""
    if groups:
        for logits, ids in zip(groups, native.greedy_ids([each.values for each in groups]), strict=True):
            logits._argmax = ids
