"""Runs a model over chunks of requests: builds the batch, owns the cache and its block tables.

Used alike for the target and for a draft model. Knows nothing about sampling or speculation.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.kv_cache.manager import KVCacheManager
from outrider.models.base import CausalModel, Hidden
from outrider.models.batch import ForwardBatch, TreePlaces
from outrider.models.logits import Logits
from outrider.verification.base import path_to


@dataclass(frozen=True)
class Chunk:
    """Tokens at places ``[start, start + len(token_ids))`` of one request, logits wanted for the last ``num_logits``.

    ``paths``, if given, are for nodes of a tree that follows the first ``tree_start`` tokens: one for each of the last
    ``len(paths)`` tokens, the places of its ancestors in the tree and of itself. Its position is that of a chain.
    """

    request_id: str
    token_ids: Sequence[int]
    start: int
    num_logits: int
    tree_start: int = 0
    paths: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class ForwardOutput:
    """What a pass gave for each chunk, in their order.

    logits   of the chunk's last ``num_logits`` tokens
    hidden   [num_logits, captured layers, hidden_size] float32 for the same tokens; None if no layer was asked for
    seconds  that the model took
    """

    logits: list[Logits]
    hidden: list[Hidden | None]
    seconds: float


def tree_paths(parents: Sequence[int], start: int) -> list[list[int]]:
    """The path of each node of a tree whose nodes lie at places from ``start`` on, in order."""
    return [[start + node for node in path_to(parents, last)] for last in range(len(parents))]


class ModelRunner:
    """A model, its paged cache, and the blocks of each request in it."""

    def __init__(self, model: CausalModel, *, num_blocks: int, block_size: int, prefix_caching: bool = True) -> None:
        self.model = model
        self.kv = KVCacheManager(num_blocks, block_size, prefix_caching=prefix_caching)
        self._cache = model.new_cache(num_blocks, block_size)

    def forward(self, chunks: Sequence[Chunk], capture: Sequence[int] = ()) -> ForwardOutput:
        """One pass over all chunks: their logits and, for the layers in ``capture``, the residual stream that enters.

        Layer ``model.num_layers`` means the output of the last one, before the final norm. The slots of all tokens must
        have been allocated in ``kv``. Raises ``ValueError`` for a layer that the model does not have.
        """
        for layer in capture:
            if not 0 <= layer <= self.model.num_layers:
                raise ValueError(f"capture={layer!r} must be a layer from 0 to {self.model.num_layers}")
        batch = self.build_batch(chunks)
        begin = time.perf_counter()
        output = self.model.forward(batch, self._cache, capture)
        seconds = time.perf_counter() - begin
        bounds = itertools.pairwise(itertools.accumulate((chunk.num_logits for chunk in chunks), initial=0))
        parts = [slice(*bound) for bound in bounds]
        hidden = [None if output.hidden is None else output.hidden[part] for part in parts]
        return ForwardOutput([output.logits[part] for part in parts], hidden, seconds)

    def build_batch(self, chunks: Sequence[Chunk]) -> ForwardBatch:
        """Flatten ``chunks``. Raises ``IntegrityError`` if a token has no slot."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logit_rows: list[int] = []
        query_start = [0]
        for chunk in chunks:
            stop = chunk.start + len(chunk.token_ids)
            token_ids.extend(chunk.token_ids)
            in_line = stop - len(chunk.paths)
            positions.extend(range(chunk.start, in_line))
            positions.extend(chunk.tree_start + len(path) - 1 for path in chunk.paths)
            slots.extend(self.kv.slots(chunk.request_id, chunk.start, stop))
            query_start.append(len(token_ids))
            logit_rows.extend(range(len(token_ids) - chunk.num_logits, len(token_ids)))
        tables = [self.kv.block_table(chunk.request_id) for chunk in chunks]
        width = max(map(len, tables))
        return ForwardBatch(
            token_ids=np.array(token_ids, dtype=np.int64),
            positions=np.array(positions, dtype=np.int64),
            slot_mapping=np.array(slots, dtype=np.int64),
            query_start=tuple(query_start),
            seq_lens=tuple(chunk.start + len(chunk.token_ids) for chunk in chunks),
            block_tables=np.array([table + [0] * (width - len(table)) for table in tables], dtype=np.int64),
            logit_rows=np.array(logit_rows, dtype=np.int64),
            tree=_tree_places(chunks),
        )

    def keep_path(self, request_id: str, start: int, nodes: Sequence[int]) -> None:
        """Make the K/V of a tree's ``nodes`` those of consecutive tokens; node i lies at place ``start + i``.

        ``nodes`` is a path from the root down. Nothing is moved as far as it lies in line already.
        """
        moved = [(start + node, start + place) for place, node in enumerate(nodes) if node != place]
        if moved:
            from_slots, to_slots = (
                [self.kv.slots(request_id, place, place + 1)[0] for place in places]
                for places in zip(*moved, strict=True)
            )
            self.model.move(self._cache, from_slots, to_slots)


def _tree_places(chunks: Sequence[Chunk]) -> TreePlaces | None:
    if not any(chunk.paths for chunk in chunks):
        return None
    depth = max(len(path) for chunk in chunks for path in chunk.paths)
    rows: list[list[int]] = []
    for chunk in chunks:
        rows += [[0] * depth] * (len(chunk.token_ids) - len(chunk.paths))
        rows += [[*path, *[0] * (depth - len(path))] for path in chunk.paths]
    start = tuple(chunk.tree_start if chunk.paths else chunk.start + len(chunk.token_ids) for chunk in chunks)
    return TreePlaces(start, np.array(rows, dtype=np.int64))
