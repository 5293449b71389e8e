"""The input of one forward pass: tokens of many requests, flattened. Knows nothing about sampling or drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ForwardBatch:
    """``num_tokens`` tokens of ``num_requests`` requests, one request after another.

    token_ids     [num_tokens] int64
    positions     [num_tokens] int64, place of each token in its request
    slot_mapping  [num_tokens] int64, where each token's K/V is written: block * block_size + offset
    query_start   num_requests + 1 numbers; the tokens of request r are the half-open [query_start[r], query_start[r+1])
    seq_lens      num_requests numbers: tokens of the request that have K/V after this pass
    block_tables  [num_requests, max_blocks] int64, padded with 0 beyond each request's blocks
    logit_rows    [num_logits] int64, the tokens (places in the flat batch) whose logits are wanted
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    query_start: tuple[int, ...]
    seq_lens: tuple[int, ...]
    block_tables: Tensor
    logit_rows: Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens of all requests together."""
        return self.query_start[-1]

    def to(self, device: torch.device) -> ForwardBatch:
        """The same batch with its tensors on ``device``."""
        return ForwardBatch(
            token_ids=self.token_ids.to(device),
            positions=self.positions.to(device),
            slot_mapping=self.slot_mapping.to(device),
            query_start=self.query_start,
            seq_lens=self.seq_lens,
            block_tables=self.block_tables.to(device),
            logit_rows=self.logit_rows.to(device),
        )
