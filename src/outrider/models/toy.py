"""Models whose distribution is known exactly, for tests and audits.

A toy model keeps token ids in its paged cache instead of K and V, and reads each row's context back through the
block tables. So a wrong slot, a rollback that forgets, or a block given to two requests changes its output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.models.batch import ForwardBatch
from outrider.ops.reference import move_kv

Distribution = Callable[[tuple[int, ...]], NDArray[np.float64]]
"""From a context (all tokens so far) to the distribution of the next one, [vocab]."""

EMPTY = -1


class ToyModel:
    """A ``CausalModel`` given by a function from context to distribution; logits are its logarithms in float64."""

    def __init__(self, vocab_size: int, distribution: Distribution, *, max_model_len: int = 4096) -> None:
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.device = torch.device("cpu")
        self.num_passes = 0
        self._probs = distribution

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of one block: one int64 per token."""
        return 8 * block_size

    def new_cache(self, num_blocks: int, block_size: int) -> Tensor:
        """Token ids [num_blocks, block_size], all ``EMPTY``."""
        return torch.full((num_blocks, block_size), EMPTY, dtype=torch.int64)

    def move(self, cache: Tensor, from_slots: Sequence[int], to_slots: Sequence[int]) -> None:
        """Copy the token ids of each slot to another."""
        move_kv(cache[:, :, None, None], from_slots, to_slots)

    def forward(self, batch: ForwardBatch, cache: Tensor) -> Tensor:
        """Logits [num_logits, vocab] float64."""
        self.num_passes += 1
        block_size = cache.shape[1]
        cache.view(-1)[batch.slot_mapping] = batch.token_ids
        owner = np.repeat(np.arange(len(batch.seq_lens)), np.diff(batch.query_start))
        rows = []
        for row in batch.logit_rows.tolist():
            places = list(range(int(batch.positions[row]) + 1))
            if batch.tree is not None:
                start = batch.tree.start[owner[row]]
                places[start:] = batch.tree.places[row, : len(places[start:])].tolist()
            blocks = batch.block_tables[owner[row], : -(-(max(places) + 1) // block_size)]
            context = tuple(cache[blocks].view(-1)[places].tolist())
            if EMPTY in context:
                raise RuntimeError(f"context {context} was read before it was written")
            with np.errstate(divide="ignore"):
                rows.append(np.log(self._probs(context)))
        return torch.from_numpy(np.array(rows, dtype=np.float64).reshape(-1, self.vocab_size))


def random_table(vocab_size: int, seed: int, *, order: int = 2, sharpness: float = 1.0) -> Distribution:
    """A distribution that depends on the last ``order`` tokens: softmax of ``sharpness`` times fixed Gaussian numbers.

    A large ``sharpness`` makes wide margins, so that exact equality of greedy tokens is a fair test.
    """

    @lru_cache(maxsize=1 << 16)
    def of_suffix(suffix: tuple[int, ...]) -> NDArray[np.float64]:
        generator = np.random.default_rng([seed, *suffix])
        weights = np.exp(sharpness * generator.standard_normal(vocab_size))
        return np.asarray(weights / weights.sum())

    return lambda context: of_suffix(tuple(context[-order:]))


def scripted(vocab_size: int, script: Sequence[int], *, prompt_len: int, confidence: float = 0.99) -> Distribution:
    """A distribution that continues a prompt of ``prompt_len`` tokens with ``script``, over and over, at
    ``confidence``."""

    def distribution(context: tuple[int, ...]) -> NDArray[np.float64]:
        probs = np.full(vocab_size, (1.0 - confidence) / (vocab_size - 1))
        probs[script[(len(context) - prompt_len) % len(script)]] = confidence
        return probs

    return distribution
