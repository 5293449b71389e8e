"""The decoder on the native kernels: one call per forward pass, every weight read once for all rows.

Each row is computed in an order that does not depend on the other rows, so a pass over K + 1 tokens gives the very
bits of K + 1 passes over one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.models.batch import ForwardBatch
from outrider.models.config import ModelConfig
from outrider.models.loader.packed import PackedWeights
from outrider.models.rope import local_frequencies, scaled_frequencies
from outrider.ops import native

_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
_OPTIONAL = ("q_norm", "k_norm", "post_attn_norm", "post_mlp_norm", "q_bias", "k_bias", "v_bias")


class NativeCache:
    """Paged K and V of all layers, each [num_blocks, block_size, num_kv_heads, head_dim]."""

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype) for _ in range(config.num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in range(config.num_layers)]
        self.handle = native.library().KVCache(self.keys, self.values)


class NativeDecoder:
    """A ``CausalModel`` over packed weights; CPU only. ``kv_dtype`` is float16 or float32."""

    def __init__(self, config: ModelConfig, weights: PackedWeights, *, kv_dtype: torch.dtype) -> None:
        self.config = config
        head: Any = weights.get("lm_head", weights["embed"])
        self.vocab_size = int(head.rows)  # of a trimmed draft fewer than it can read
        self.max_model_len = config.max_position_embeddings
        self.device = torch.device("cpu")
        self._kv_dtype = kv_dtype
        self.weight_bytes = sum(int(weight.nbytes) for weight in weights.values())
        self._model = native.library().Model(
            weights["embed"],
            weights.get("lm_head"),
            weights["final_norm"],
            [self._layer(weights, index) for index in range(config.num_layers)],
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            eps=config.rms_norm_eps,
            attention_scale=config.attention_scale,
            embedding_scale=config.embedding_scale,
            act=config.activation,
        )

    def _layer(self, weights: PackedWeights, index: int) -> Mapping[str, object]:
        config, prefix = self.config, f"layers.{index}."
        names = ("attn_norm", "mlp_norm", *_MATRICES)
        layer: dict[str, Any] = {name: weights[prefix + name] for name in names}
        layer |= {name: weights[prefix + name] for name in _OPTIONAL if prefix + name in weights}
        window = config.window(index)
        local = local_frequencies(config) if window is not None else None
        layer["rope"] = (scaled_frequencies(config) if local is None else local).numpy()
        layer["window"] = window or 0
        return layer

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of one KV block over all layers."""
        c = self.config
        return 2 * c.num_layers * block_size * c.num_kv_heads * c.head_dim * self._kv_dtype.itemsize

    def new_cache(self, num_blocks: int, block_size: int) -> NativeCache:
        """Paged K and V; untouched blocks cost no memory."""
        return NativeCache(self.config, num_blocks, block_size, self._kv_dtype)

    def move(self, cache: NativeCache, from_slots: Sequence[int], to_slots: Sequence[int]) -> None:
        """Copy the K and V of each slot to another, in every layer."""
        cache.handle.move(from_slots, to_slots)

    def forward(self, batch: ForwardBatch, cache: NativeCache) -> Tensor:
        """Write the batch's K/V and return float32 logits [num_logits, vocab] for ``batch.logit_rows``."""
        logits = np.empty((len(batch.logit_rows), self.vocab_size), dtype=np.float32)
        self._model.forward(
            cache.handle,
            batch.token_ids,
            batch.positions,
            batch.slot_mapping,
            batch.query_start,
            batch.seq_lens,
            batch.block_tables,
            batch.logit_rows,
            logits,
            tree=None if batch.tree is None else batch.tree.places,
            tree_start=None if batch.tree is None else batch.tree.start,
        )
        return torch.from_numpy(logits)
