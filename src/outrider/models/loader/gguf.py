"""Models of every supported family in GGUF files: configuration, and weights under the canonical names.

Reads through ``gguf_file``; builds no tokenizer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelFormatError
from outrider.models.config import (
    LOCAL_THETA_OF_GEMMA3,
    WINDOW_PERIOD_OF_GEMMA3,
    ModelConfig,
    RopeScaling,
    family_traits,
    head_size,
    layer_count,
    positive_float,
    positive_int,
    window_pattern,
)
from outrider.models.loader.gguf_file import GGUFFile
from outrider.models.loader.shapes import Shape, check_weights, expected_shapes
from outrider.models.packing import dequantized

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
"""Values of ``general.architecture``; Mistral models call themselves ``llama``."""

_GLOBAL_NAMES = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "lm_head": "output.weight"}
_LAYER_NAMES = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "post_attn_norm": "post_attention_norm.weight",
    "post_mlp_norm": "post_ffw_norm.weight",
}
_LAYERS_OF_GEMMA3_27B = 62
"""No file states what scores are divided by; of the published sizes only this one does not use the head's size."""

_ROPE_FACTORS = "rope_freqs.weight"


def gguf_name(name: str) -> str:
    """The file's name of a canonical weight: ``layers.3.q`` -> ``blk.3.attn_q.weight``."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    _, layer, part = name.split(".")
    return f"blk.{layer}.{_LAYER_NAMES[part]}"


def unpermute_rows(num_heads: int, head_dim: int) -> NDArray[np.int64]:
    """Row indices [num_heads * head_dim] that turn interleaved rotary rows into two halves.

    Llama GGUF files store row (head, i, half) where the decoder wants (head, half, i), so ``stored[indices]`` is in
    the decoder's order. Rows are moved whole, so it applies to packed weights too.
    """
    rows = np.arange(num_heads * head_dim, dtype=np.int64).reshape(num_heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def read_config(file: GGUFFile) -> ModelConfig:
    """Configuration from the metadata, without the end tokens, which need the vocabulary.

    Raises ``ModelFormatError`` naming a value that is missing or not supported.
    """
    family = file.metadata.get("general.architecture")
    if family not in FAMILIES:
        raise ModelFormatError(
            f"{file.path}: architecture {family!r} is not supported; supported are: {', '.join(FAMILIES)}"
        )
    try:
        return _read_config(file, str(family))
    except ModelFormatError as error:
        raise ModelFormatError(f"{file.path}: {error}") from None


def _read_config(file: GGUFFile, family: str) -> ModelConfig:
    values, prefix = file.metadata, family + "."
    context = positive_int(values, prefix + "context_length")
    hidden = positive_int(values, prefix + "embedding_length")
    heads = positive_int(values, prefix + "attention.head_count")
    head_dim = positive_int(values, prefix + "attention.key_length", default=head_size(hidden, heads))
    only: dict[str, float] = {"attention.value_length": head_dim, "rope.dimension_count": head_dim, "expert_count": 0}
    only |= {"attn_logit_softcapping": 0.0, "final_logit_softcapping": 0.0}
    for key, allowed in only.items():
        if (value := values.get(prefix + key, allowed)) != allowed:
            raise ModelFormatError(f"{prefix + key}={value!r} is not supported; supported is {allowed}")
    bos = values.get("tokenizer.ggml.bos_token_id")
    embedding = file.tensors.get("token_embd.weight")
    traits = family_traits(family, hidden)
    if "blk.0.attn_q.bias" in file.tensors:
        traits["attention_bias"] = True
    layers = layer_count(values, prefix + "block_count")
    gemma3 = family == "gemma3"
    return ModelConfig(
        family=family,
        vocab_size=positive_int(values, prefix + "vocab_size", default=embedding.shape[0] if embedding else None),
        hidden_size=hidden,
        intermediate_size=positive_int(values, prefix + "feed_forward_length"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=positive_int(values, prefix + "attention.head_count_kv", default=heads),
        head_dim=head_dim,
        max_position_embeddings=context,
        rms_norm_eps=positive_float(values, prefix + "attention.layer_norm_rms_epsilon"),
        rope_theta=positive_float(values, prefix + "rope.freq_base", default=10000.0),
        rope_scaling=_rope_scaling(file, prefix, head_dim),
        tie_word_embeddings="output.weight" not in file.tensors,
        bos_token_id=bos if isinstance(bos, int) else None,
        query_pre_attn_scalar=hidden / heads if gemma3 and layers == _LAYERS_OF_GEMMA3_27B else None,
        sliding_windows=_windows(values, family, layers, context),
        local_rope_theta=(
            positive_float(values, prefix + "rope.freq_base_swa", default=LOCAL_THETA_OF_GEMMA3) if gemma3 else None
        ),
        **traits,
    )


def _windows(values: Mapping[str, Any], family: str, layers: int, context: int) -> tuple[int | None, ...]:
    """The window of each layer: all alike in Llama (Mistral) files, by a pattern in Gemma 3 files."""
    key = family + ".attention.sliding_window"
    if family == "gemma3":
        window, pattern = positive_int(values, key), values.get(key + "_pattern", WINDOW_PERIOD_OF_GEMMA3)
        if not isinstance(pattern, list):
            period = positive_int({key + "_pattern": pattern}, key + "_pattern")
            return window_pattern(window, period, layers)
        return tuple(window if windowed else None for windowed in pattern)
    if not values.get(key) or (window := positive_int(values, key)) >= context:
        return ()
    if family != "llama":  # such files do not say which layers have it
        raise ModelFormatError(f"{key}={window!r} is not supported for this architecture; supported are: llama, gemma3")
    return (window,) * layers


def _rope_scaling(file: GGUFFile, prefix: str, head_dim: int) -> RopeScaling | None:
    values = file.metadata
    kind = values.get(prefix + "rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise ModelFormatError(
            f"{prefix}rope.scaling.type={kind!r} is not supported; supported are: none, linear, llama3"
        )
    if _ROPE_FACTORS in file.tensors:
        return _llama3_scaling(_rope_factors(file, head_dim), positive_float(values, prefix + "rope.freq_base", 1e4))
    # Files older than rope.scaling.* give the linear factor under this key.
    factor = values.get(prefix + "rope.scaling.factor", values.get(prefix + "rope.scale_linear", 1.0))
    if kind == "linear" or prefix + "rope.scale_linear" in values:
        return None if factor == 1.0 else RopeScaling("linear", positive_float({"factor": factor}, "factor"))
    return None


def _rope_factors(file: GGUFFile, head_dim: int) -> NDArray[np.float64]:
    info = file.tensors[_ROPE_FACTORS]
    if info.type_id != 0 or info.shape != (head_dim // 2,):
        raise ModelFormatError(
            f"tensor {_ROPE_FACTORS!r} must be float32 of shape [{head_dim // 2}], not {list(info.shape)}"
        )
    stored: NDArray[np.float32] = file.raw(_ROPE_FACTORS).view(np.float32)[0]
    return stored.astype(np.float64)


def _llama3_scaling(factors: NDArray[np.float64], theta: float) -> RopeScaling:
    """The Llama 3 scaling that gives these divisors of the rotary frequencies.

    GGUF keeps the divisors and not the parameters. All Llama 3 models share the bounds and the original context and
    differ in the factor, which is the largest divisor; the divisors are computed from that and compared.
    """
    scaling = RopeScaling("llama3", round(float(factors.max()), 3))
    frequencies = theta ** -(np.arange(len(factors)) / len(factors))
    turns = scaling.original_max_position_embeddings * frequencies / (2 * np.pi)
    keep = np.clip((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0, 1.0)
    if not np.allclose(factors, 1 / ((1 - keep) / scaling.factor + keep), rtol=1e-3):
        raise ModelFormatError(
            f"tensor {_ROPE_FACTORS!r} is not the scaling of a Llama 3 model; other rope factors are not supported"
        )
    return scaling


def checked_shapes(file: GGUFFile, config: ModelConfig) -> dict[str, tuple[str, Shape]]:
    """Canonical name -> (name in the file, shape). Raises ``ModelFormatError`` unless the file holds just those."""
    wanted = {name: (gguf_name(name), shape) for name, shape in expected_shapes(config).items()}
    found = {name: info.shape for name, info in file.tensors.items() if name != _ROPE_FACTORS}
    check_weights(file.path, wanted, found)
    return wanted


def read_weights(file: GGUFFile, config: ModelConfig) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every canonical name and its weight in float32, one after another.

    Raises ``ModelFormatError`` as ``checked_shapes`` and ``float_weight`` do.
    """
    from concurrent.futures import ThreadPoolExecutor

    wanted = checked_shapes(file, config)

    def read(name: str) -> NDArray[np.float32]:
        return float_weight(file, *wanted[name], row_order(config, name))

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        yield from zip(wanted, pool.map(read, wanted), strict=True)


def row_order(config: ModelConfig, name: str) -> NDArray[np.int64] | None:
    """The order in which the rows of a canonical weight are taken from the file; ``None`` if as they lie."""
    part = name.rpartition(".")[2]
    if config.family == "llama" and part in ("q", "q_bias", "k", "k_bias"):
        return unpermute_rows(config.num_heads if part.startswith("q") else config.num_kv_heads, config.head_dim)
    return None


def float_weight(
    file: GGUFFile, name: str, shape: Shape, order: NDArray[np.int64] | None = None
) -> NDArray[np.float32]:
    """The tensor ``name`` in float32 and ``shape``, its rows (a vector's values) taken in ``order`` if given.

    Raises ``ModelFormatError`` for a type that cannot be dequantized.
    """
    info, raw = file.tensors[name], file.raw(name)
    if order is not None and len(shape) > 1:
        raw = raw[order]
    try:
        values = dequantized(raw, info.type_id).reshape(shape)
    except NotImplementedError:
        raise ModelFormatError(
            f"{file.path}: tensor {name!r} has the quantization type {info.type_name}, which cannot be dequantized; "
            "use a file with another quantization"
        ) from None
    return values[order] if order is not None and len(shape) == 1 else values
