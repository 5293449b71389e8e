"""The decoder on the native kernels: one call per forward pass, every weight read once for all rows.

Each row is computed in an order that does not depend on the other rows, so a pass over K + 1 tokens gives the very
bits of K + 1 passes over one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from outrider import native
from outrider.kv_cache.storage import KVShape
from outrider.models.base import ModelOutput
from outrider.models.batch import ForwardBatch
from outrider.models.config import ModelConfig
from outrider.models.loader.packed import PackedWeights
from outrider.models.logits import ArrayLogits
from outrider.models.rope import local_frequencies, scaled_frequencies

if TYPE_CHECKING:
    from outrider.native import library

_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
_OPTIONAL = ("q_norm", "k_norm", "post_attn_norm", "post_mlp_norm", "q_bias", "k_bias", "v_bias")


class NativeDecoder:
    """A ``CausalModel`` over packed weights; CPU only."""

    device = "cpu"

    def __init__(
        self, config: ModelConfig, weights: PackedWeights, *, kv_dtype: Literal["float16", "float32"] = "float16"
    ) -> None:
        self.config = config
        head: Any = weights.get("lm_head", weights["embed"])
        self.vocab_size = int(head.rows)  # of a trimmed draft fewer than it can read
        self.max_model_len = config.max_position_embeddings
        self.num_layers = config.num_layers
        self.weight_bytes = sum(int(weight.nbytes) for weight in weights.values())
        self._kv_dtype = np.dtype(kv_dtype)
        self._kv_shape = KVShape(config.num_layers, config.num_kv_heads, config.head_dim)
        outer: Mapping[str, Any] = weights
        self._model = native.library.Model(
            outer["embed"],
            outer.get("lm_head"),
            outer["final_norm"],
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
        layer["rope"] = scaled_frequencies(config) if local is None else local
        layer["window"] = window or 0
        return layer

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of one KV block over all layers."""
        return self._kv_shape.bytes_per_block(block_size, self._kv_dtype.itemsize)

    def new_cache(self, num_blocks: int, block_size: int) -> library.KVCache:
        """Paged K and V; untouched blocks cost no memory."""
        return native.library.KVCache(*self._kv_shape.allocate(num_blocks, block_size, self._kv_dtype))

    def move(self, cache: library.KVCache, from_slots: Sequence[int], to_slots: Sequence[int]) -> None:
        """Copy the K and V of each slot to another, in every layer."""
        cache.move(from_slots, to_slots)

    def forward(self, batch: ForwardBatch, cache: library.KVCache, capture: Sequence[int] = ()) -> ModelOutput:
        """See ``CausalModel.forward``; logits are float32."""
        num_logits = len(batch.logit_rows)
        logits = np.empty((num_logits, self.vocab_size), dtype=np.float32)
        shape = (num_logits, len(capture), self.config.hidden_size)
        hidden = np.empty(shape, dtype=np.float32) if capture else None
        self._model.forward(
            cache,
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
            capture=capture,
            hidden=hidden,
        )
        return ModelOutput(ArrayLogits(logits), hidden)
