"""The input of one forward pass: tokens of many requests, flattened. Knows nothing about sampling or drafts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TreePlaces:
    """Where the keys of a tree's nodes lie. A token's place in its request's cache is its position, but several nodes
    of a tree share a position; so each node says where its ancestors are.

    start   num_requests numbers: the position at which the request's tree begins; its length, if it has none
    places  [num_tokens, depth]: a token at position p >= start sees places [0, start) and those in its row up to
            column p - start, which holds its own; the rest of the row means nothing
    """

    start: tuple[int, ...]
    places: Ints


@dataclass(frozen=True)
class ForwardBatch:
    """``num_tokens`` tokens of ``num_requests`` requests, one request after another.

    token_ids     [num_tokens]
    positions     [num_tokens], place of each token in its request
    slot_mapping  [num_tokens], where each token's K/V is written: block * block_size + offset
    query_start   num_requests + 1 numbers; the tokens of request r are the half-open [query_start[r], query_start[r+1])
    seq_lens      num_requests numbers: tokens of the request that have K/V after this pass
    block_tables  [num_requests, max_blocks], padded with 0 beyond each request's blocks
    logit_rows    [num_logits], the tokens (places in the flat batch) whose logits are wanted
    tree          None if there are no trees, else the places in the request of each node's ancestors and itself
    """

    token_ids: Ints
    positions: Ints
    slot_mapping: Ints
    query_start: tuple[int, ...]
    seq_lens: tuple[int, ...]
    block_tables: Ints
    logit_rows: Ints
    tree: TreePlaces | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of all requests together."""
        return self.query_start[-1]
