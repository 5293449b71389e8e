"""Shape and constants of one decoder, whatever family it comes from. Knows nothing about files or tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from outrider.errors import ModelFormatError

ARCHITECTURES: dict[str, str] = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}
"""Hugging Face architecture -> family; the family is also the ``general.architecture`` of a GGUF file."""

_MOST_LAYERS = 10_000
"""More than any model has: a damaged count is refused before anything is sized by it."""

ROPE_SCALINGS = ("default", "linear", "llama3")


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts longer than the model first saw.

    ``factor`` divides frequencies: all of them for ``linear``, the long wavelengths for ``llama3``, whose other
    three values say where long begins and short ends, in turns over the original context.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise ModelFormatError(f"rope scaling factor={self.factor!r} must be a positive number")
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ModelFormatError(
                f"rope scaling needs 0 < low_freq_factor < high_freq_factor, "
                f"not {self.low_freq_factor!r} and {self.high_freq_factor!r}"
            )


@dataclass(frozen=True)
class ModelConfig:
    """One pre-norm decoder with grouped-query attention and a gated SiLU MLP.

    ``attention_bias`` is a bias on query, key and value. Rotary embeddings rotate the two halves of a head; files
    that interleave them are reordered by their loader. Raises ``ModelFormatError`` if the values do not fit together.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.num_layers > _MOST_LAYERS:
            raise ModelFormatError(f"num_layers={self.num_layers} is above {_MOST_LAYERS}; the file is damaged")
        if self.num_heads % self.num_kv_heads:
            raise ModelFormatError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}; "
                "the model's configuration is damaged"
            )
        if self.head_dim % 2:
            raise ModelFormatError(f"head_dim={self.head_dim} is odd; rotary embeddings need an even one")

    @classmethod
    def from_hf(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Build from the content of a Hugging Face ``config.json``.

        Raises ``ModelFormatError`` naming the key and value that is missing, wrong or not supported.
        """
        family = _family(values)
        if values.get("quantization_config") is not None:
            method = dict(values["quantization_config"]).get("quant_method", "unknown")
            raise ModelFormatError(
                f"config.json: quantization_config with quant_method={method!r} is not supported; "
                "use the unquantized checkpoint or a .gguf file"
            )
        _refuse_variants(family, values)
        hidden, heads = positive_int(values, "hidden_size"), positive_int(values, "num_attention_heads")
        rope = rope_values(values)
        return cls(
            family=family,
            vocab_size=positive_int(values, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=positive_int(values, "intermediate_size"),
            num_layers=positive_int(values, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=positive_int(values, "num_key_value_heads", default=heads),
            head_dim=positive_int(values, "head_dim", default=head_size(hidden, heads)),
            max_position_embeddings=positive_int(values, "max_position_embeddings"),
            rms_norm_eps=positive_float(values, "rms_norm_eps"),
            rope_theta=positive_float({**values, **rope}, "rope_theta", default=10000.0),
            rope_scaling=_rope_scaling(rope),
            attention_bias=family == "qwen2",
            tie_word_embeddings=_flag(values, "tie_word_embeddings"),
            eos_token_ids=token_ids(values, "eos_token_id"),
            bos_token_id=next(iter(token_ids(values, "bos_token_id")), None),
        )


def head_size(hidden: int, heads: int) -> int:
    """Elements of one head where the file does not state it. Raises ``ModelFormatError`` if it does not divide."""
    if hidden % heads:
        raise ModelFormatError(f"hidden_size={hidden} is not a multiple of num_attention_heads={heads}")
    return hidden // heads


def positive_int(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """``values[key]`` as a positive integer, or ``default`` where it is absent; ``ModelFormatError`` otherwise."""
    value = values.get(key)
    if value is None:
        value = default
    if value is None:
        raise ModelFormatError(f"the model's configuration lacks {key!r}; the file is incomplete, fetch it again")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelFormatError(f"the model's configuration has {key}={value!r}; it must be a positive integer")
    return value


def positive_float(values: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """``values[key]`` as a positive finite number, or ``default`` where absent; ``ModelFormatError`` otherwise."""
    value = values.get(key)
    if value is None:
        value = default
    if value is None:
        raise ModelFormatError(f"the model's configuration lacks {key!r}; the file is incomplete, fetch it again")
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ModelFormatError(f"the model's configuration has {key}={value!r}; it must be a positive number")
    return float(value)


def token_ids(values: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """Token ids under ``key``, which may be absent, one id, or a list. Raises ``ModelFormatError`` otherwise."""
    value = values.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
        raise ModelFormatError(f"the model's configuration has {key}={value!r}; it must be a token id or a list of ids")
    return tuple(ids)


def _flag(values: Mapping[str, Any], key: str) -> bool:
    value = values.get(key)
    if value is not None and not isinstance(value, bool):
        raise ModelFormatError(f"the model's configuration has {key}={value!r}; it must be true or false")
    return bool(value)


def _family(values: Mapping[str, Any]) -> str:
    architectures = values.get("architectures")
    supported = ", ".join(ARCHITECTURES)
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise ModelFormatError(f"config.json: architectures={architectures!r}; it must name one of: {supported}")
    if architectures[0] not in ARCHITECTURES:
        raise ModelFormatError(f"architecture {architectures[0]!r} is not supported; supported are: {supported}")
    return ARCHITECTURES[architectures[0]]


def _refuse_variants(family: str, values: Mapping[str, Any]) -> None:
    """Refuse settings that change the computation in a way that the decoder does not do."""
    if values.get("hidden_act", "silu") != "silu":
        raise ModelFormatError(f"hidden_act={values['hidden_act']!r} is not supported; supported is 'silu'")
    if family == "llama":
        for key in ("attention_bias", "mlp_bias"):
            if _flag(values, key):
                raise ModelFormatError(f"{key}=true in a Llama model is not supported; supported is false")
    layer_types = values.get("layer_types") or []
    if _flag(values, "use_sliding_window") or "sliding_attention" in layer_types:
        raise ModelFormatError("sliding window attention is not supported for this architecture; use_sliding_window")
    partial = {**values, **rope_values(values)}.get("partial_rotary_factor")
    if partial not in (None, 1, 1.0):
        raise ModelFormatError(f"partial_rotary_factor={partial!r} is not supported; supported is 1.0")


def rope_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary settings, which newer files keep in ``rope_parameters`` and older ones in ``rope_scaling``."""
    found = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise ModelFormatError(f"the model's configuration has rope_scaling={found!r}; it must be an object or null")
    return found


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPE_SCALINGS:
        raise ModelFormatError(f"rope scaling {kind!r} is not supported; supported are: {', '.join(ROPE_SCALINGS)}")
    if kind == "default":
        return None
    factor = positive_float(rope, "factor")
    if kind == "linear":
        return RopeScaling("linear", factor)
    return RopeScaling(
        "llama3",
        factor,
        low_freq_factor=positive_float(rope, "low_freq_factor"),
        high_freq_factor=positive_float(rope, "high_freq_factor"),
        original_max_position_embeddings=positive_int(rope, "original_max_position_embeddings"),
    )
