"""Logits of a pass on the device that computed them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from outrider.models.logits import Rows
from outrider.torch_backend import ops


class _Pass:
    """All rows of one pass, [rows, vocab] float32, reduced once for whoever asks."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @cached_property
    @torch.inference_mode()
    def best(self) -> list[int | None]:
        """The most probable token of each row, the lowest id among equals; None where the largest is not finite."""
        largest, ids = ops.max_and_argmax(self.values)
        sound = largest.isfinite()
        return [token_id if ok else None for token_id, ok in zip(ids.tolist(), sound.tolist(), strict=True)]


@dataclass
class TorchLogits:
    """``Logits`` that stay on their device but for the rows that are asked for."""

    scores: _Pass
    places: range
    """The rows of the pass that these are."""
    known_argmax: list[int] | None = None

    @staticmethod
    def of(values: Tensor) -> TorchLogits:
        """All rows of ``values`` [rows, vocab] float32."""
        return TorchLogits(_Pass(values), range(len(values)))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, part: slice) -> TorchLogits:
        return TorchLogits(self.scores, self.places[part])

    def argmax(self, rows: slice | None = None) -> list[int]:
        """See ``Logits.argmax``; one reduction for the whole pass, on its device."""
        places = self.places if rows is None else self.places[rows]
        ids = [self.scores.best[place] for place in places]
        return [token_id for token_id in ids if token_id is not None] if None not in ids else []

    def row(self, index: int) -> Rows:
        """See ``Logits.row``."""
        values: Rows = self.scores.values[self.places[index]].cpu().numpy()
        return values

    def rows(self, part: slice) -> Rows:
        """See ``Logits.rows``."""
        places = self.places[part]
        values: Rows = self.scores.values[places.start : places.stop : places.step].cpu().numpy()
        return values
