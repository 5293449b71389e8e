"""The memory of K and V. Knows shapes, but not which request owns which block."""

from __future__ import annotations

import torch


class KVStorage:
    """K and V of all layers, each ``[num_blocks, block_size, num_kv_heads, head_dim]``, initialised with zeros."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_blocks, block_size, num_kv_heads, head_dim)
        self.block_size = block_size
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]

    @staticmethod
    def bytes_per_block(num_layers: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes of one block over all layers, for K and V together."""
        return 2 * num_layers * block_size * num_kv_heads * head_dim * dtype.itemsize
