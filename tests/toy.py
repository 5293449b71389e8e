"""Models whose distribution is known exactly.

A toy model keeps token ids in its paged cache instead of K and V, and reads each row's context back through the
block tables. So a wrong slot, a rollback that forgets, or a block given to two requests changes its output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from outrider.models.base import ModelOutput
from outrider.models.batch import ForwardBatch
from outrider.models.logits import ArrayLogits

Distribution = Callable[[tuple[int, ...]], NDArray[np.float64]]
"""From a context (all tokens so far) to the distribution of the next one, [vocab]."""

EMPTY = -1


Tokens = NDArray[np.int64]


class ToyModel:
    """A ``CausalModel`` given by a function from context to distribution; logits are its logarithms in float64.

    Its one layer passes the context's length and last token on, so that captured states can be checked.
    """

    num_layers = 1
    device = "cpu"

    def __init__(self, vocab_size: int, distribution: Distribution, *, max_model_len: int = 4096) -> None:
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.num_passes = 0
        self._probs = distribution

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of one block: one int64 per token."""
        return 8 * block_size

    def new_cache(self, num_blocks: int, block_size: int) -> Tokens:
        """Token ids [num_blocks, block_size], all ``EMPTY``."""
        return np.full((num_blocks, block_size), EMPTY, dtype=np.int64)

    def move(self, cache: Tokens, from_slots: Sequence[int], to_slots: Sequence[int]) -> None:
        """Copy the token ids of each slot to another."""
        flat = cache.reshape(-1)
        flat[list(to_slots)] = flat[list(from_slots)]

    def forward(self, batch: ForwardBatch, cache: Tokens, capture: Sequence[int] = ()) -> ModelOutput:
        """Logits [num_logits, vocab] float64."""
        self.num_passes += 1
        block_size = cache.shape[1]
        cache.reshape(-1)[batch.slot_mapping] = batch.token_ids
        owner = np.repeat(np.arange(len(batch.seq_lens)), np.diff(batch.query_start))
        rows: list[NDArray[np.float64]] = []
        states: list[list[list[int]]] = []
        for row in batch.logit_rows.tolist():
            places = list(range(int(batch.positions[row]) + 1))
            if batch.tree is not None:
                start = batch.tree.start[owner[row]]
                places[start:] = batch.tree.places[row, : len(places[start:])].tolist()
            blocks = batch.block_tables[owner[row], : -(-(max(places) + 1) // block_size)]
            context = tuple(cache[blocks].reshape(-1)[places].tolist())
            if EMPTY in context:
                raise RuntimeError(f"context {context} was read before it was written")
            with np.errstate(divide="ignore"):
                rows.append(np.log(self._probs(context)))
            states.append([[len(context), context[-1]] for _ in capture])
        logits = ArrayLogits(np.array(rows, dtype=np.float64).reshape(-1, self.vocab_size))
        hidden = np.array(states, dtype=np.float32).reshape(-1, len(capture), 2) if capture else None
        return ModelOutput(logits, hidden)


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
