"""What the runner needs of a model: one method from a batch to logits, and a cache of the model's own kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from outrider.models.batch import ForwardBatch


class CausalModel(Protocol):
    """A model that scores next tokens over a paged cache.

    ``forward`` writes what the batch's tokens add to the cache and returns float logits [num_logits, vocab_size]
    for ``batch.logit_rows``. Row i must not depend on what else is in the batch beyond its own request's tokens.
    """

    vocab_size: int
    max_model_len: int
    device: torch.device

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes that one block of ``block_size`` tokens takes in this model's cache."""
        ...

    def new_cache(self, num_blocks: int, block_size: int) -> Any:
        """A cache that ``forward`` understands."""
        ...

    def move(self, cache: Any, from_slots: Sequence[int], to_slots: Sequence[int]) -> None:
        """Copy what the cache holds of each slot to another; no slot is read after it was written."""
        ...

    def forward(self, batch: ForwardBatch, cache: Any) -> Tensor:
        """Logits [num_logits, vocab_size] for the rows asked for."""
        ...
