"""Shape and constants of one decoder, whatever family it comes from. Knows nothing about files or tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from outrider.errors import ModelFormatError

ARCHITECTURES: dict[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
}
"""Hugging Face architecture -> family, which is also the ``general.architecture`` of a GGUF file (Mistral's: llama)."""

_HINTS = {
    "Gemma3ForConditionalGeneration": "; of Gemma 3 only text models are, so use a GGUF file, which holds that part"
}
"""What to do instead, for architectures near a supported one."""

_HEAD_DIMS = {"qwen3": 128, "gemma3": 256}
"""Head size where ``config.json`` does not state it; of other families it is hidden_size / heads."""

_WINDOW_OF_MISTRAL = 4096
"""Mistral's window where ``config.json`` does not say; later models say null."""

WINDOW_PERIOD_OF_GEMMA3 = 6
"""Every so many layers of Gemma 3 one sees everything, where the file does not say."""

LOCAL_THETA_OF_GEMMA3 = 10_000.0
"""Rotary base of Gemma 3's layers with a window, where the file does not say; of the others it is ``_GLOBAL_THETA``."""

_GLOBAL_THETA = 1_000_000.0
_FULL, _WINDOWED = "full_attention", "sliding_attention"

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
    """One pre-norm decoder with grouped-query attention and a gated MLP.

    ``attention_bias`` is a bias on query, key and value; ``qk_norm`` an RMS norm of each query and key head before it
    is rotated; ``sandwich_norms`` a second norm, of what attention and MLP give, before it is added. All norms
    multiply by the weight as the loader gives it. ``activation`` is that of the MLP's gate.

    ``sliding_windows`` has one entry per layer, or none at all: at window W, position p sees keys [p - W + 1, p];
    ``None`` sees all. ``local_rope_theta`` is the rotary base of the layers with a window, unscaled, where they have
    their own. ``embedding_scale`` multiplies the embeddings. ``query_pre_attn_scalar`` is what scores are divided by
    the root of, where it is not ``head_dim``.

    Rotary embeddings rotate the two halves of a head; files that interleave them are reordered by their loader.
    Raises ``ModelFormatError`` if the values do not fit together.
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
    activation: Literal["silu", "gelu_tanh"] = "silu"
    qk_norm: bool = False
    sandwich_norms: bool = False
    embedding_scale: float = 1.0
    query_pre_attn_scalar: float | None = None
    sliding_windows: tuple[int | None, ...] = ()
    local_rope_theta: float | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelFormatError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}; "
                "the model's configuration is damaged"
            )
        if self.head_dim % 2:
            raise ModelFormatError(f"head_dim={self.head_dim} is odd; rotary embeddings need an even one")
        if self.sliding_windows and len(self.sliding_windows) != self.num_layers:
            raise ModelFormatError(
                f"the model's configuration gives windows for {len(self.sliding_windows)} layers and has "
                f"num_layers={self.num_layers}; it is damaged"
            )

    @property
    def attention_scale(self) -> float:
        """What a dot product of query and key is multiplied by before the softmax."""
        return 1 / math.sqrt(self.head_dim if self.query_pre_attn_scalar is None else self.query_pre_attn_scalar)

    def window(self, layer: int) -> int | None:
        """Number of positions that a token of this layer sees, itself included; ``None`` if all."""
        return self.sliding_windows[layer] if self.sliding_windows else None

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
        theta, local_theta = positive_float({**values, **rope}, "rope_theta", default=10000.0), None
        if family == "gemma3":
            rope, theta, local_theta = _gemma3_rope(values, rope)
        return cls(
            family=family,
            vocab_size=positive_int(values, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=positive_int(values, "intermediate_size"),
            num_layers=layer_count(values, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=positive_int(values, "num_key_value_heads", default=heads),
            head_dim=positive_int(values, "head_dim", default=_HEAD_DIMS.get(family) or head_size(hidden, heads)),
            max_position_embeddings=positive_int(values, "max_position_embeddings"),
            rms_norm_eps=positive_float(values, "rms_norm_eps"),
            rope_theta=theta,
            rope_scaling=_rope_scaling(rope),
            tie_word_embeddings=_flag(values, "tie_word_embeddings", default=family == "gemma3"),
            eos_token_ids=token_ids(values, "eos_token_id"),
            bos_token_id=next(iter(token_ids(values, "bos_token_id")), None),
            query_pre_attn_scalar=(
                positive_float(values, "query_pre_attn_scalar", default=256.0) if family == "gemma3" else None
            ),
            sliding_windows=_windows(family, values),
            local_rope_theta=local_theta,
            **family_traits(family, hidden),
        )


def family_traits(family: str, hidden_size: int) -> dict[str, Any]:
    """The fields of ``ModelConfig`` that follow from the family, whatever file describes the model."""
    if family == "gemma3":
        return {
            "activation": "gelu_tanh",
            "qk_norm": True,
            "sandwich_norms": True,
            "embedding_scale": math.sqrt(hidden_size),
        }
    return {"attention_bias": family == "qwen2", "qk_norm": family == "qwen3"}


def window_pattern(window: int, period: int, num_layers: int) -> tuple[int | None, ...]:
    """A window on all layers but every ``period``-th, which sees everything."""
    return tuple(None if (layer + 1) % period == 0 else window for layer in range(num_layers))


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


def layer_count(values: Mapping[str, Any], key: str) -> int:
    """``values[key]`` as a number of layers. Raises ``ModelFormatError`` for one that no model has."""
    value = positive_int(values, key)
    if value > _MOST_LAYERS:
        raise ModelFormatError(f"num_layers={value} is above {_MOST_LAYERS}; the file is damaged")
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


def _flag(values: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = values.get(key)
    if value is None:
        value = default
    if not isinstance(value, bool):
        raise ModelFormatError(f"the model's configuration has {key}={value!r}; it must be true or false")
    return value


def _family(values: Mapping[str, Any]) -> str:
    architectures = values.get("architectures")
    supported = ", ".join(ARCHITECTURES)
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise ModelFormatError(f"config.json: architectures={architectures!r}; it must name one of: {supported}")
    if architectures[0] not in ARCHITECTURES:
        hint = _HINTS.get(str(architectures[0]), "")
        raise ModelFormatError(f"architecture {architectures[0]!r} is not supported; supported are: {supported}{hint}")
    return ARCHITECTURES[architectures[0]]


def _refuse_variants(family: str, values: Mapping[str, Any]) -> None:
    """Refuse settings that change the computation in a way that the decoder does not do."""
    key, allowed = ("hidden_activation", "gelu_pytorch_tanh") if family == "gemma3" else ("hidden_act", "silu")
    if values.get(key, allowed) != allowed:
        raise ModelFormatError(f"{key}={values[key]!r} is not supported; supported is {allowed!r}")
    for key in ("attention_bias", "mlp_bias", "use_bidirectional_attention"):
        if family != "qwen2" and _flag(values, key):
            raise ModelFormatError(f"{key}=true is not supported for architecture {family!r}; supported is false")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if values.get(key) is not None:
            raise ModelFormatError(f"{key}={values[key]!r} is not supported; supported is null")
    partial = {**values, **rope_values(values)}.get("partial_rotary_factor")
    if partial not in (None, 1, 1.0):
        raise ModelFormatError(f"partial_rotary_factor={partial!r} is not supported; supported is 1.0")


def _windows(family: str, values: Mapping[str, Any]) -> tuple[int | None, ...]:
    kinds = _layer_kinds(family, values, layer_count(values, "num_hidden_layers"))
    if _WINDOWED not in kinds:
        return ()
    window = positive_int(values, "sliding_window", default=_WINDOW_OF_MISTRAL if family == "mistral" else None)
    return tuple(window if kind == _WINDOWED else None for kind in kinds)


def _layer_kinds(family: str, values: Mapping[str, Any], layers: int) -> list[str]:
    """``full_attention`` or ``sliding_attention`` for each layer, as ``layer_types`` or older settings say it."""
    stated = values.get("layer_types")
    if stated is not None and (
        not isinstance(stated, list) or len(stated) != layers or any(kind not in (_FULL, _WINDOWED) for kind in stated)
    ):
        raise ModelFormatError(
            f"layer_types={stated!r} is not supported; it must list {_FULL} or {_WINDOWED} per layer"
        )
    uses_window = _flag(values, "use_sliding_window")
    if family == "gemma3":
        period = positive_int(values, "sliding_window_pattern", default=WINDOW_PERIOD_OF_GEMMA3)
        return stated or [_WINDOWED if window else _FULL for window in window_pattern(1, period, layers)]
    if family in ("qwen2", "qwen3") and uses_window:
        first = 0 if stated else positive_int(values, "max_window_layers")
        return stated or [_FULL if layer < first else _WINDOWED for layer in range(layers)]
    if uses_window:
        raise ModelFormatError(f"use_sliding_window=true is not supported for {family} models; supported is false")
    everywhere = family == "mistral" and values.get("sliding_window", _WINDOW_OF_MISTRAL) is not None
    kinds = [_WINDOWED if everywhere else _FULL] * layers
    if stated not in (None, kinds):
        raise ModelFormatError(f"layer_types={stated!r} is not supported for {family} models with these settings")
    return kinds


def rope_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary settings, which newer files keep in ``rope_parameters`` and older ones in ``rope_scaling``."""
    found = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise ModelFormatError(f"the model's configuration has rope_scaling={found!r}; it must be an object or null")
    return found


def _gemma3_rope(values: Mapping[str, Any], rope: dict[str, Any]) -> tuple[dict[str, Any], float, float]:
    """Rotary settings of the layers without a window, their base, and the base of those with one."""
    if not rope.keys() & {_FULL, _WINDOWED}:  # older files have one set of keys, which means the former
        local = positive_float(values, "rope_local_base_freq", default=LOCAL_THETA_OF_GEMMA3)
        return rope, positive_float({**values, **rope}, "rope_theta", default=_GLOBAL_THETA), local
    full, windowed = rope.get(_FULL) or {}, rope.get(_WINDOWED) or {}
    if not isinstance(full, dict) or not isinstance(windowed, dict):
        raise ModelFormatError(f"the model's configuration has rope_parameters={rope!r}; it must hold objects")
    if _rope_scaling(windowed) is not None:
        raise ModelFormatError(f"rope scaling {windowed!r} of layers with a window is not supported")
    return (
        full,
        positive_float(full, "rope_theta", default=_GLOBAL_THETA),
        positive_float(windowed, "rope_theta", default=LOCAL_THETA_OF_GEMMA3),
    )


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
