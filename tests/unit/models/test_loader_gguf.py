"""GGUF files: every quantization type, the order of rotary rows, and files that are damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from outrider import native
from outrider.errors import ModelFormatError
from outrider.models import packing
from outrider.models.config import RopeScaling
from outrider.models.loader import gguf as loader
from outrider.models.loader.gguf_file import TENSOR_TYPES, GGUFFile
from outrider.models.loader.huggingface import huggingface_name
from tests.loading import load_model

Write = Callable[..., Path]
Build = Callable[..., Any]
TYPES = [
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ1_S",
    "IQ1_M",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ3_XXS",
    "IQ3_S",
    "IQ4_NL",
    "IQ4_XS",
    "TQ1_0",
    "TQ2_0",
    "MXFP4",
]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_those_of_the_original(write_gguf: Write, tiny_model: Build, family: str, tied: bool) -> None:
    state = tiny_model(family).state_dict()
    if tied:
        del state["lm_head.weight"]
    loaded = load_model(str(write_gguf(state, family)))
    assert loaded.config.tie_word_embeddings == tied
    assert loaded.config.attention_bias == (family == "qwen2")
    assert len(loaded.weights) == len(state)
    for name, tensor in loaded.weights.items():
        assert torch.equal(tensor, state[huggingface_name(name)]), name


def test_llama_files_with_biases_have_those_reordered_too(write_gguf: Write, tiny_model: Build) -> None:
    state = tiny_model("qwen2").state_dict()
    loaded = load_model(str(write_gguf(state, "llama")))
    for name, tensor in loaded.weights.items():
        assert torch.equal(tensor, state[huggingface_name(name)]), name


def test_the_embedding_gives_the_vocabulary_size_where_metadata_does_not(write_gguf: Write, tiny_model: Build) -> None:
    state = tiny_model().state_dict()
    config = load_model(str(write_gguf(state, metadata={"llama.vocab_size": None}))).config
    assert config.vocab_size == len(state["model.embed_tokens.weight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_come_in_the_type_asked_for(write_gguf: Write, tiny_model: Build, dtype: torch.dtype) -> None:
    state = tiny_model().state_dict()
    for name, tensor in load_model(str(write_gguf(state)), dtype).weights.items():
        assert torch.equal(tensor, state[huggingface_name(name)].to(dtype)), name


def test_the_types_of_tensors_are_those_of_the_gguf_package() -> None:
    ours = {type_id: (block, size) for type_id, (_, block, size) in TENSOR_TYPES.items()}
    assert ours == {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
    assert all(GGMLQuantizationType(type_id).name == name for type_id, (name, _, _) in TENSOR_TYPES.items())


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("reorder", [False, True])
def test_every_type_dequantizes_as_gguf_does(
    write_gguf: Write, monkeypatch: pytest.MonkeyPatch, kind: str, reorder: bool
) -> None:
    monkeypatch.setattr(packing, "_CHUNK_VALUES", 1024)  # several chunks, the last one partly filled
    quantization = GGMLQuantizationType[kind]
    block, block_bytes = GGML_QUANT_SIZES[quantization]
    rows, columns = 5, 512
    packed = np.random.default_rng(0).integers(0, 256, (rows, columns // block * block_bytes), dtype=np.uint8)
    if kind in ("F32", "F16"):
        packed = packed.view(np.float32 if kind == "F32" else np.float16)
    file = GGUFFile(write_gguf(tensors={"t": packed}, types={"t": quantization}))
    order = np.array([3, 1, 4, 0, 2]) if reorder else None
    with np.errstate(all="ignore"):  # random bits hold infinities
        found = loader.float_weight(file, "t", (rows, columns), order)
        expected = gguf.dequantize(packed, quantization)
    np.testing.assert_array_equal(found, expected if order is None else expected[order])


def test_a_type_that_cannot_be_dequantized_is_named(write_gguf: Write, tiny_model: Build) -> None:
    bad = {"blk.1.ffn_up.weight": np.ones((48, 32), dtype=np.int8)}
    path = write_gguf(tiny_model().state_dict(), tensors=bad)
    with pytest.raises(ModelFormatError, match=r"'blk.1.ffn_up.weight' has the quantization type I8"):
        load_model(str(path))


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (3, 8), (4, 64)])
def test_row_order_undoes_the_interleaving(heads: int, head_dim: int) -> None:
    original = np.arange(heads * head_dim)
    stored = original.reshape(heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)
    assert stored[loader.unpermute_rows(heads, head_dim)].tolist() == original.tolist()


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, None),
        ({"llama.rope.scaling.type": "none"}, None),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, RopeScaling("linear", 4.0)),
        ({"llama.rope.scale_linear": 2.0}, RopeScaling("linear", 2.0)),
        ({"llama.rope.scale_linear": 1.0}, None),
    ],
)
def test_rope_scaling(write_gguf: Write, metadata: dict[str, Any], expected: RopeScaling | None) -> None:
    assert loader.read_config(GGUFFile(write_gguf(metadata=metadata))).rope_scaling == expected


def test_windows(write_gguf: Write) -> None:
    def windows(family: str, **values: Any) -> tuple[int | None, ...]:
        metadata = {f"{family}.{key}": value for key, value in values.items()}
        return loader.read_config(GGUFFile(write_gguf(family=family, metadata=metadata))).sliding_windows

    assert windows("llama", **{"attention.sliding_window": 64}) == (64, 64)
    assert windows("llama", **{"attention.sliding_window": 128}) == ()  # the whole context
    assert windows("gemma3") == (8, 8, None, 8)
    none: dict[str, Any] = {"attention.sliding_window_pattern": None, "block_count": 7}
    assert windows("gemma3", **none) == (*[8] * 5, None, 8)
    assert windows("gemma3", **{"attention.sliding_window_pattern": 2}) == (8, None, 8, None)
    with pytest.raises(ModelFormatError, match="qwen2.attention.sliding_window=64 is not supported"):
        windows("qwen2", **{"attention.sliding_window": 64})
    with pytest.raises(ModelFormatError, match="lacks 'gemma3.attention.sliding_window'"):
        windows("gemma3", **{"attention.sliding_window": None})
    with pytest.raises(ModelFormatError, match="windows for 3 layers and has num_layers=4"):
        windows("gemma3", **{"attention.sliding_window_pattern": [True, False, True]})


def test_gemma3_constants(write_gguf: Write) -> None:
    config = loader.read_config(GGUFFile(write_gguf(family="gemma3")))
    assert (config.local_rope_theta, config.rope_theta, config.rope_scaling) == (1e4, 1e6, RopeScaling("linear", 4.0))
    assert config.attention_scale == pytest.approx(16**-0.5)
    assert config.embedding_scale == pytest.approx(32**0.5)
    largest = {"gemma3.block_count": 62, "gemma3.attention.sliding_window_pattern": None}
    config = loader.read_config(GGUFFile(write_gguf(family="gemma3", metadata=largest)))
    assert config.attention_scale == pytest.approx((32 / 4) ** -0.5)


def llama3_factors(factor: float, head_dim: int, theta: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Divisors of the rotary frequencies as a converter computes them, one by one."""
    factors = []
    for i in range(head_dim // 2):
        wavelength = 2 * np.pi * theta ** (2 * i / head_dim)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192 / 1:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recovered_from_the_factors(write_gguf: Write, factor: float) -> None:
    size = {"llama.attention.key_length": 64, "llama.attention.value_length": 64, "llama.rope.freq_base": 500000.0}
    factors = llama3_factors(factor, 64, 500000.0)
    config = loader.read_config(GGUFFile(write_gguf(metadata=size, tensors={"rope_freqs.weight": factors})))
    assert config.rope_scaling == RopeScaling("llama3", factor)
    with pytest.raises(ModelFormatError, match="not the scaling of a Llama 3 model"):
        loader.read_config(GGUFFile(write_gguf(metadata=size, tensors={"rope_freqs.weight": factors[::-1]})))


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"llama.block_count": None}, "lacks 'llama.block_count'"),
        ({"llama.block_count": 1 << 31}, "num_layers=2147483648"),
        ({"llama.vocab_size": None}, "lacks 'llama.vocab_size'"),
        ({"llama.embedding_length": 33}, "hidden_size=33 is not a multiple"),
        ({"llama.attention.head_count": "4"}, "llama.attention.head_count='4'"),
        ({"llama.attention.head_count_kv": 3}, "num_kv_heads=3"),
        ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count=4 is not supported; supported is 8"),
        ({"llama.expert_count": 8}, "llama.expert_count=8"),
        ({"llama.attention.sliding_window": "8"}, "llama.attention.sliding_window='8'"),
        ({"llama.final_logit_softcapping": 30.0}, "llama.final_logit_softcapping=30.0 is not supported"),
        ({"llama.rope.scaling.type": "yarn"}, "rope.scaling.type='yarn'"),
        ({"llama.rope.scaling.type": "linear"}, None),
    ],
)
def test_metadata_that_does_not_fit_is_named(write_gguf: Write, metadata: dict[str, Any], said: str | None) -> None:
    file = GGUFFile(write_gguf(metadata=metadata))
    if said is None:
        assert loader.read_config(file).rope_scaling is None
        return
    with pytest.raises(ModelFormatError, match=said) as caught:
        loader.read_config(file)
    assert "\n" not in str(caught.value)
    assert str(file.path) in str(caught.value)


def test_an_unknown_architecture_is_named(write_gguf: Write) -> None:
    with pytest.raises(
        ModelFormatError, match="architecture 'mamba' is not supported; supported are: llama, qwen2, qwen3, gemma3"
    ):
        load_model(str(write_gguf(family="mamba")))


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"blk.1.attn_v.weight": None}, "tensor 'blk.1.attn_v.weight' is missing"),
        ({"blk.0.attn_sinks.weight": np.ones(4, np.float32)}, "'blk.0.attn_sinks.weight' is not known"),
        ({"blk.0.ffn_up.weight": np.ones((32, 48), np.float32)}, r"has shape \[32, 48\], expected \[48, 32\]"),
        ({"output_norm.weight": np.ones((1, 32), np.float32)}, r"has shape \[1, 32\], expected \[32\]"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    write_gguf: Write, tiny_model: Build, tensors: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelFormatError, match=said):
        load_model(str(write_gguf(tiny_model().state_dict(), tensors=tensors)))


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04" + bytes(100), bytes(64)])
def test_a_file_that_is_no_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match="empty|no GGUF file"):
        load_model(str(path))


def test_a_truncated_file_says_how_much_is_missing(write_gguf: Write, tiny_model: Build) -> None:
    path = write_gguf(tiny_model().state_dict())
    content = path.read_bytes()
    last = max(info.offset + info.size for info in GGUFFile(path).tensors.values())
    path.write_bytes(content[: last - 1000])
    with pytest.raises(ModelFormatError, match="truncated: it has .* bytes, 1000 are missing"):
        load_model(str(path))


def test_the_header_is_read_alike_without_the_native_library(
    write_gguf: Write, tiny_model: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tiny_model().state_dict(), metadata={"tokenizer.ggml.tokens": ["a", "", "é" * 300] * 5})
    file = GGUFFile(path)
    monkeypatch.setattr(native, "available", lambda: False)
    plain = GGUFFile(path)
    assert (plain.metadata, plain.tensors) == (file.metadata, file.tensors)
    assert plain.strings("tokenizer.ggml.tokens") == file.strings("tokenizer.ggml.tokens") == ["a", "", "é" * 300] * 5
    assert plain.tokenizer_digest() == file.tokenizer_digest()


def test_a_file_cut_anywhere_in_its_header_is_refused(write_gguf: Write, tiny_model: Build) -> None:
    path = write_gguf(tiny_model().state_dict())
    content = path.read_bytes()
    first = min(info.offset for info in GGUFFile(path).tensors.values())
    for keep in range(4, first, 37):
        path.write_bytes(content[:keep])
        with pytest.raises(ModelFormatError, match=r"missing") as caught:
            GGUFFile(path)
        assert "\n" not in str(caught.value), keep


def test_changed_header_bytes_never_show_as_another_error(write_gguf: Write, tiny_model: Build) -> None:
    """Whatever a damaged byte does, the reader either still reads the file or raises ``ModelFormatError``."""
    path = write_gguf(tiny_model().state_dict(), metadata={"tokenizer.ggml.tokens": ["a", "b"]})
    content = path.read_bytes()
    first = min(info.offset for info in GGUFFile(path).tensors.values())
    refused = 0
    for at in range(4, first, 29):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        try:
            file = GGUFFile(path)
            file.strings("tokenizer.ggml.tokens")
            list(loader.read_weights(file, loader.read_config(file)))
        except ModelFormatError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize(("version", "said"), [(1, "version 1 is not"), (4, "version 4"), (3 << 24, "big-endian")])
def test_other_versions(write_gguf: Write, version: int, said: str) -> None:
    path = write_gguf()
    content = path.read_bytes()
    path.write_bytes(content[:4] + version.to_bytes(4, "little") + content[8:])
    with pytest.raises(ModelFormatError, match=said):
        GGUFFile(path)


@pytest.mark.model
def test_smollm2(smollm2_path: Path) -> None:
    loaded = load_model(str(smollm2_path))
    config = loaded.config
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert (config.vocab_size, config.rope_theta, config.tie_word_embeddings) == (49152, 100000.0, True)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    # The file's hash is pinned, so where its tensors lie is known.
    for name, at, shape, kind in [
        ("embed", 1785664, (49152, 612), GGMLQuantizationType.Q8_0),
        ("layers.0.down", 31868992, (576, 960), GGMLQuantizationType.Q4_1),
    ]:
        packed = np.memmap(smollm2_path, np.uint8, "r", offset=at, shape=shape)[-500:]
        np.testing.assert_array_equal(loaded.weights[name][-500:].numpy(), gguf.dequantize(packed, kind))
