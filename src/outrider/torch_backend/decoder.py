"""One pre-norm decoder with grouped-query attention and a gated MLP, configured for each family, not copied.

Families differ only in their ``ModelConfig``. Knows nothing about files, tokenizers or sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outrider.kv_cache.storage import KVShape
from outrider.models.base import ModelOutput
from outrider.models.batch import ForwardBatch
from outrider.models.config import ModelConfig
from outrider.models.loader.load import OpenModel
from outrider.models.rope import local_frequencies, scaled_frequencies
from outrider.torch_backend import ops
from outrider.torch_backend.logits import TorchLogits


def load_decoder(
    opened: OpenModel, *, dtype: str = "float32", device: str = "cpu", head_rows: Sequence[int] | None = None
) -> Decoder:
    """The model that was opened, its weights as ``dtype`` (torch's name of it) on ``device``.

    ``head_rows`` trims the output to those tokens. Raises ``ModelFormatError``.
    """
    kind: torch.dtype = getattr(torch, dtype)
    weights = {name: as_tensor(values, kind) for name, values in opened.dense_weights()}
    return Decoder(opened.config, weights, torch.device(device), head_rows=head_rows)


def as_tensor(values: np.ndarray, dtype: torch.dtype) -> Tensor:
    """``values`` as ``dtype``; uint16 are the bits of bfloat16."""
    tensor = torch.from_numpy(np.array(values))  # a copy, since weights may lie in a file that is mapped
    return (tensor.view(torch.bfloat16) if values.dtype == np.uint16 else tensor).to(dtype)


@dataclass(frozen=True)
class TorchCache:
    """Paged K and V of each layer, [num_blocks, block_size, num_kv_heads, head_dim]."""

    keys: list[Tensor]
    values: list[Tensor]


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
        self.device = str(device)
        self.num_layers = config.num_layers
        self._device = device
        self.max_model_len = config.max_position_embeddings
        self._embed = weights["embed"].to(device)
        self._lm_head = self._embed if config.tie_word_embeddings else weights["lm_head"].to(device)
        if head_rows is not None:
            self._lm_head = self._lm_head[list(head_rows)]
        self.vocab_size = self._lm_head.shape[0]
        self._final_norm = weights["final_norm"].to(device)
        self._layers = [self._layer(weights, f"layers.{i}.") for i in range(config.num_layers)]
        self.weight_bytes = sum(weight.nbytes for weight in weights.values())
        self._frequencies = torch.from_numpy(scaled_frequencies(config)).to(device)
        local = local_frequencies(config)
        self._local_frequencies = None if local is None else torch.from_numpy(local).to(device)
        self.dtype = self._embed.dtype
        self._kv_shape = KVShape(config.num_layers, config.num_kv_heads, config.head_dim)

    def _layer(self, weights: Mapping[str, Tensor], prefix: str) -> LayerWeights:
        def joined(*names: str) -> Tensor:
            return torch.cat([weights[prefix + name] for name in names]).to(self._device)

        def optional(name: str) -> Tensor | None:
            return weights[prefix + name].to(self._device) if prefix + name in weights else None

        biased = prefix + "q_bias" in weights
        return LayerWeights(
            attn_norm=weights[prefix + "attn_norm"].to(self._device),
            qkv=joined("q", "k", "v"),
            qkv_bias=joined("q_bias", "k_bias", "v_bias") if biased else None,
            out=weights[prefix + "o"].to(self._device),
            mlp_norm=weights[prefix + "mlp_norm"].to(self._device),
            gate_up=joined("gate", "up"),
            down=weights[prefix + "down"].to(self._device),
            q_norm=optional("q_norm"),
            k_norm=optional("k_norm"),
            post_attn_norm=optional("post_attn_norm"),
            post_mlp_norm=optional("post_mlp_norm"),
        )

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of one KV block over all layers."""
        return self._kv_shape.bytes_per_block(block_size, self.dtype.itemsize)

    def new_cache(self, num_blocks: int, block_size: int) -> TorchCache:
        """Paged K and V in the type of the weights; on a CPU untouched blocks cost no memory."""
        if self._device.type == "cpu":
            bits = {1: np.uint8, 2: np.uint16, 4: np.uint32}[self.dtype.itemsize]
            arrays = self._kv_shape.allocate(num_blocks, block_size, bits)
            keys, values = ([torch.from_numpy(array).view(self.dtype) for array in side] for side in arrays)
        else:
            c, shape = self.config, self._kv_shape.of_layer(num_blocks, block_size)
            keys, values = (
                [torch.zeros(shape, dtype=self.dtype, device=self._device) for _ in range(c.num_layers)]
                for _ in range(2)
            )
        return TorchCache(keys, values)

    def move(self, cache: TorchCache, from_slots: Sequence[int], to_slots: Sequence[int]) -> None:
        """Copy the K and V of each slot to another, in every layer."""
        for memory in (*cache.keys, *cache.values):
            ops.move_kv(memory, from_slots, to_slots)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: TorchCache, capture: Sequence[int] = ()) -> ModelOutput:
        """See ``CausalModel.forward``; logits are float32, and stay on the device."""
        config, eps = self.config, self.config.rms_norm_eps

        def here(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(self._device)

        positions, slots, logit_rows = here(batch.positions), here(batch.slot_mapping), here(batch.logit_rows)
        block_tables = here(batch.block_tables)
        tree = None if batch.tree is None else (batch.tree.start, here(batch.tree.places))
        tables = ops.rotary_tables(positions, self._frequencies)
        local = self._local_frequencies
        local_tables = tables if local is None else ops.rotary_tables(positions, local)
        entering: dict[int, Tensor] = {}
        heads = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        gated = ops.silu_mul if config.activation == "silu" else ops.gelu_tanh_mul
        hidden = ops.embedding(self._embed, here(batch.token_ids))  # [num_tokens, hidden]
        if config.embedding_scale != 1.0:
            hidden = hidden * torch.tensor(config.embedding_scale, dtype=hidden.dtype)
        for index, (layer, keys, values) in enumerate(zip(self._layers, cache.keys, cache.values, strict=True)):
            if index in capture:
                entering[index] = hidden[logit_rows].float()
            window = config.window(index)
            cos, sin = tables if window is None else local_tables
            qkv = ops.linear(ops.rms_norm(hidden, layer.attn_norm, eps), layer.qkv, layer.qkv_bias)
            query, key, value = torch.split(qkv.view(batch.num_tokens, -1, config.head_dim), heads, dim=1)
            query, key = _normed(query, layer.q_norm, eps), _normed(key, layer.k_norm, eps)
            ops.write_kv(keys, slots, ops.apply_rotary(key, cos, sin))
            ops.write_kv(values, slots, value)
            mixed = ops.paged_attention(
                ops.apply_rotary(query, cos, sin),
                keys,
                values,
                block_tables,
                batch.query_start,
                batch.seq_lens,
                scale=config.attention_scale,
                window=window,
                tree=tree,
            )
            attended = ops.linear(mixed.reshape(batch.num_tokens, -1), layer.out)
            hidden = hidden + _normed(attended, layer.post_attn_norm, eps)
            gate_up = ops.linear(ops.rms_norm(hidden, layer.mlp_norm, eps), layer.gate_up)
            hidden = hidden + _normed(ops.linear(gated(gate_up), layer.down), layer.post_mlp_norm, eps)
        scored = hidden[logit_rows]
        entering[config.num_layers] = scored.float()
        logits = ops.linear(ops.rms_norm(scored, self._final_norm, eps), self._lm_head).float()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # who times a pass times the pass, not its launch
        states = torch.stack([entering[layer] for layer in capture], dim=1).cpu().numpy() if capture else None
        return ModelOutput(TorchLogits.of(logits), states)


def _normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x if weight is None else ops.rms_norm(x, weight, eps)
