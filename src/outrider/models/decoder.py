"""One pre-norm decoder with grouped-query attention and a gated MLP, configured for each family, not copied.

Families differ only in their ``ModelConfig``. Knows nothing about files, tokenizers or sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.kv_cache.storage import KVStorage
from outrider.models.batch import ForwardBatch
from outrider.models.config import ModelConfig
from outrider.models.rope import local_frequencies, scaled_frequencies
from outrider.ops import reference as ops


@dataclass(frozen=True)
class LayerWeights:
    """One layer; matrices are [out, in]. Query, key and value are one matrix, and so are gate and up."""

    attn_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    post_attn_norm: Tensor | None
    post_mlp_norm: Tensor | None


class Decoder:
    """A ``CausalModel`` over weights under the loader's canonical names (see ``models.loader``)."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        device: torch.device,
        *,
        head_rows: Sequence[int] | None = None,
    ) -> None:
        """``head_rows`` trims the output to those tokens, whose logits then come in that order."""
        self.config = config
        self.device = device
        self.max_model_len = config.max_position_embeddings
        self._embed = weights["embed"].to(device)
        self._lm_head = self._embed if config.tie_word_embeddings else weights["lm_head"].to(device)
        if head_rows is not None:
            self._lm_head = self._lm_head[list(head_rows)]
        self.vocab_size = self._lm_head.shape[0]
        self._final_norm = weights["final_norm"].to(device)
        self._layers = [self._layer(weights, f"layers.{i}.") for i in range(config.num_layers)]
        self.weight_bytes = sum(weight.nbytes for weight in weights.values())
        self._frequencies = scaled_frequencies(config).to(device)
        local = local_frequencies(config)
        self._local_frequencies = None if local is None else local.to(device)
        self.dtype = self._embed.dtype

    def _layer(self, weights: Mapping[str, Tensor], prefix: str) -> LayerWeights:
        def joined(*names: str) -> Tensor:
            return torch.cat([weights[prefix + name] for name in names]).to(self.device)

        def optional(name: str) -> Tensor | None:
            return weights[prefix + name].to(self.device) if prefix + name in weights else None

        biased = prefix + "q_bias" in weights
        return LayerWeights(
            attn_norm=weights[prefix + "attn_norm"].to(self.device),
            qkv=joined("q", "k", "v"),
            qkv_bias=joined("q_bias", "k_bias", "v_bias") if biased else None,
            out=weights[prefix + "o"].to(self.device),
            mlp_norm=weights[prefix + "mlp_norm"].to(self.device),
            gate_up=joined("gate", "up"),
            down=weights[prefix + "down"].to(self.device),
            q_norm=optional("q_norm"),
            k_norm=optional("k_norm"),
            post_attn_norm=optional("post_attn_norm"),
            post_mlp_norm=optional("post_mlp_norm"),
        )

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of one KV block over all layers."""
        c = self.config
        return KVStorage.bytes_per_block(c.num_layers, block_size, c.num_kv_heads, c.head_dim, self.dtype)

    def new_cache(self, num_blocks: int, block_size: int) -> KVStorage:
        """Paged K and V in the type of the weights."""
        return KVStorage(
            num_layers=self.config.num_layers,
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    def move(self, cache: KVStorage, from_slots: Sequence[int], to_slots: Sequence[int]) -> None:
        """Copy the K and V of each slot to another, in every layer."""
        for memory in (*cache.keys, *cache.values):
            ops.move_kv(memory, from_slots, to_slots)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: KVStorage) -> Tensor:
        """Write the batch's K/V and return float32 logits [num_logits, vocab] for ``batch.logit_rows``."""
        config, eps = self.config, self.config.rms_norm_eps
        tables = ops.rotary_tables(batch.positions, self._frequencies)
        local = self._local_frequencies
        local_tables = tables if local is None else ops.rotary_tables(batch.positions, local)
        heads = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        gated = ops.silu_mul if config.activation == "silu" else ops.gelu_tanh_mul
        hidden = ops.embedding(self._embed, batch.token_ids)  # [num_tokens, hidden]
        if config.embedding_scale != 1.0:
            hidden = hidden * torch.tensor(config.embedding_scale, dtype=hidden.dtype)
        for index, (layer, keys, values) in enumerate(zip(self._layers, cache.keys, cache.values, strict=True)):
            window = config.window(index)
            cos, sin = tables if window is None else local_tables
            qkv = ops.linear(ops.rms_norm(hidden, layer.attn_norm, eps), layer.qkv, layer.qkv_bias)
            query, key, value = torch.split(qkv.view(batch.num_tokens, -1, config.head_dim), heads, dim=1)
            query, key = _normed(query, layer.q_norm, eps), _normed(key, layer.k_norm, eps)
            ops.write_kv(keys, batch.slot_mapping, ops.apply_rotary(key, cos, sin))
            ops.write_kv(values, batch.slot_mapping, value)
            mixed = ops.paged_attention(
                ops.apply_rotary(query, cos, sin),
                keys,
                values,
                batch.block_tables,
                batch.query_start,
                batch.seq_lens,
                scale=config.attention_scale,
                window=window,
                tree=None if batch.tree is None else (batch.tree.start, batch.tree.places),
            )
            attended = ops.linear(mixed.reshape(batch.num_tokens, -1), layer.out)
            hidden = hidden + _normed(attended, layer.post_attn_norm, eps)
            gate_up = ops.linear(ops.rms_norm(hidden, layer.mlp_norm, eps), layer.gate_up)
            hidden = hidden + _normed(ops.linear(gated(gate_up), layer.down), layer.post_mlp_norm, eps)
        scored = ops.rms_norm(hidden[batch.logit_rows], self._final_norm, eps)
        return ops.linear(scored, self._lm_head).float()


def _normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x if weight is None else ops.rms_norm(x, weight, eps)
