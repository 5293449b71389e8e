"""Tiny models and tokenizers on disk, and a cache of each test's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "2 0")
SETTINGS: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
SANDWICH_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma3": "Gemma3"}
"""Family -> how transformers spells it; the configuration of Gemma 3's text models is named on its own."""

FAMILY_SETTINGS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 8},
    "qwen3": {"head_dim": 16},
    "gemma3": {
        "head_dim": 16,
        "num_hidden_layers": 4,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 16,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000000.0},
        },
    },
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "outrider-cache"
    monkeypatch.setenv("OUTRIDER_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def vocabulary() -> list[str]:
    """Three control tokens, all bytes, and what the merges make."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*CONTROL, *alphabet, *(merge.replace(" ", "") for merge in MERGES)]


@pytest.fixture(scope="session")
def backend(vocabulary: list[str]) -> tokenizers.Tokenizer:
    pairs: Any = [tuple(merge.split()) for merge in MERGES]
    made = tokenizers.Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in CONTROL])
    return made


@pytest.fixture(scope="session")
def tiny_model(vocabulary: list[str]) -> Callable[..., Any]:
    """Build a random model of transformers of any family, each weight different, norms and biases too."""

    def build(family: str = "llama", deviation: float = 1.0, **changes: Any) -> Any:
        import transformers

        settings = {**SETTINGS, "vocab_size": len(vocabulary), "eos_token_id": 2, "bos_token_id": 1}
        settings |= {**FAMILY_SETTINGS.get(family, {}), **changes}
        config = getattr(transformers, CLASSES[family] + ("TextConfig" if family == "gemma3" else "Config"))
        made = getattr(transformers, CLASSES[family] + "ForCausalLM")(config(**settings)).eval()
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.copy_(torch.randn_like(parameter) * deviation)
        return made

    return build


@pytest.fixture(scope="session")
def hf_folder(tiny_model: Callable[..., Any], backend: tokenizers.Tokenizer) -> Callable[..., Any]:
    """Save a tiny model with its tokenizer into a folder and return the model."""

    def save(folder: Path, family: str = "llama", shard: str = "1GB", **changes: Any) -> Any:
        made = tiny_model(family, **changes)
        made.save_pretrained(folder, max_shard_size=shard)
        backend.save(str(folder / "tokenizer.json"))
        return made

    return save


@pytest.fixture
def write_gguf(vocabulary: list[str], tmp_path: Path) -> Callable[..., Path]:
    """Write a GGUF file: ``state`` as transformers names it, metadata and tensors changed or (None) left out."""
    numbers = itertools.count()

    def write(
        state: Mapping[str, torch.Tensor] | None = None,
        family: str = "llama",
        metadata: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Any] | None = None,
        types: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    ) -> Path:
        path = tmp_path / f"model{next(numbers)}.gguf"
        writer: Any = gguf.GGUFWriter(path, family)
        for key, value in {**_metadata(family, vocabulary), **(metadata or {})}.items():
            _add(writer, key, value)
        for name, value in {**_stored(state or {}, family), **(tensors or {})}.items():
            if value is not None:
                writer.add_tensor(name, np.ascontiguousarray(value), raw_dtype=(types or {}).get(name))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _metadata(family: str, vocabulary: list[str]) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if family in ("qwen3", "gemma3"):
        own = {f"{family}.attention.key_length": 16, f"{family}.attention.value_length": 16}
    if family == "gemma3":
        own |= {
            "gemma3.block_count": 4,
            "gemma3.attention.sliding_window": 8,
            "gemma3.attention.sliding_window_pattern": [True, True, False, True],
            "gemma3.rope.freq_base": 1000000.0,
            "gemma3.rope.scaling.type": "linear",
            "gemma3.rope.scaling.factor": 4.0,
        }
    return {
        f"{family}.context_length": 128,
        f"{family}.vocab_size": len(vocabulary),
        f"{family}.embedding_length": 32,
        f"{family}.feed_forward_length": 48,
        f"{family}.block_count": 2,
        f"{family}.attention.head_count": 4,
        f"{family}.attention.head_count_kv": 2,
        f"{family}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{family}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(vocabulary) - len(CONTROL)),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **own,
    }


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)


def _stored(state: Mapping[str, torch.Tensor], family: str) -> dict[str, Any]:
    """Names, row order and norms of a GGUF file.

    Llama files interleave the two halves of each query and key head; Gemma 3's hold norms with the 1 added.
    """
    names = {**NAMES, **SANDWICH_NAMES} if family == "gemma3" else NAMES
    stored: dict[str, Any] = {}
    for name, tensor in state.items():
        values = tensor.detach().float().numpy()
        part, _, suffix = name.removeprefix("model.").rpartition(".")
        if family == "llama" and part.endswith(("q_proj", "k_proj")):
            heads = 4 if part.endswith("q_proj") else 2
            shape = (heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            values = values.reshape(shape).swapaxes(1, 2).reshape(values.shape)
        if family == "gemma3" and part.endswith("norm"):
            values = values + 1
        if part.startswith("layers."):
            _, layer, inner = part.split(".", 2)
            stored[f"blk.{layer}.{names[inner]}.{suffix}"] = values
        else:
            top = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
            stored[f"{top[part]}.{suffix}"] = values
    return stored
