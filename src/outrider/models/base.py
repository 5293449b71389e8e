"""What the runner needs of a model: one method from a batch to logits, and a cache of the model's own kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.models.batch import ForwardBatch
from outrider.models.logits import Logits

Hidden = NDArray[np.float32]


@dataclass(frozen=True)
class ModelOutput:
    """What one pass gives for the batch's ``logit_rows``.

    logits  [num_logits, vocab_size]
    hidden  [num_logits, captured layers, hidden_size] float32; None if no layer was asked for
    """

    logits: Logits
    hidden: Hidden | None = None


class CausalModel(Protocol):
    """A model that scores next tokens over a paged cache.

    ``forward`` writes what the batch's tokens add to the cache and returns the logits for ``batch.logit_rows``. Row i
    must not depend on what else is in the batch beyond its own request's tokens.

    vocab_size     tokens that are scored
    max_model_len  the most tokens of one request
    num_layers     layers whose input can be captured, and the number of the last one's output
    device         where it computes: ``cpu``, or a CUDA device as torch names it
    """

    vocab_size: int
    max_model_len: int
    num_layers: int
    device: str

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes that one block of ``block_size`` tokens takes in this model's cache."""
        ...

    def new_cache(self, num_blocks: int, block_size: int) -> Any:
        """A cache that ``forward`` understands."""
        ...

    def move(self, cache: Any, from_slots: Sequence[int], to_slots: Sequence[int]) -> None:
        """Copy what the cache holds of each slot to another; no slot is read after it was written."""
        ...

    def forward(self, batch: ForwardBatch, cache: Any, capture: Sequence[int] = ()) -> ModelOutput:
        """Logits for the rows asked for, and the residual stream there at the input of the layers in ``capture``.

        Layer ``num_layers`` means the output of the last one, before the final norm. No value depends on ``capture``.
        """
        ...
