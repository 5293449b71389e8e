"""Hugging Face folders: weights bit for bit, and everything that can be wrong with one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.errors import ModelFormatError
from outrider.models.loader.huggingface import huggingface_name
from tests.loading import LoadedModel, load_model

Save = Callable[..., Any]


def assert_same_weights(loaded: LoadedModel, model: Any, dtype: torch.dtype = torch.float32) -> None:
    state = model.state_dict()
    assert len(loaded.weights) == len(state) - ("lm_head" not in loaded.weights and "lm_head.weight" in state)
    for name, tensor in loaded.weights.items():
        assert torch.equal(tensor, state[huggingface_name(name)].to(dtype)), name


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "qwen3"])
@pytest.mark.parametrize("shard", ["1GB", "20KB"])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_read_exactly(tmp_path: Path, hf_folder: Save, family: str, shard: str, tied: bool) -> None:
    model = hf_folder(tmp_path, family, shard, tie_word_embeddings=tied)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "20KB")
    loaded = load_model(str(tmp_path))
    assert_same_weights(loaded, model)
    assert ("lm_head" in loaded.weights) != tied
    assert ("layers.1.k_bias" in loaded.weights) == (family == "qwen2")
    assert loaded.source.name == tmp_path.name
    assert loaded.config.eos_token_ids == loaded.tokenizer.eos_token_ids == (2,)


def test_norms_of_gemma3_multiply_by_one_more_than_is_stored(tmp_path: Path, hf_folder: Save) -> None:
    state = hf_folder(tmp_path, "gemma3").state_dict()
    weights = load_model(str(tmp_path)).weights
    assert "lm_head" not in weights
    assert len(weights) == len(state) - 1
    norms = [name for name in weights if name.endswith("norm")]
    assert len(norms) == 4 * 6 + 1
    for name, tensor in weights.items():
        stored = state[huggingface_name(name, sandwich_norms=True)]
        assert torch.equal(tensor, stored + 1 if name in norms else stored), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_come_in_the_type_asked_for(tmp_path: Path, hf_folder: Save, dtype: torch.dtype) -> None:
    model = hf_folder(tmp_path)
    assert_same_weights(load_model(str(tmp_path), dtype), model, dtype)


def test_a_stored_output_matrix_of_a_tied_model_is_left_out(tmp_path: Path, hf_folder: Save) -> None:
    hf_folder(tmp_path, tie_word_embeddings=True)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({**weights, "lm_head.weight": weights["model.embed_tokens.weight"] * 2}, tmp_path / "model.safetensors")
    assert "lm_head" not in load_model(str(tmp_path)).weights


def test_rotary_buffers_of_older_checkpoints_are_ignored(tmp_path: Path, hf_folder: Save) -> None:
    model = hf_folder(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(weights, tmp_path / "model.safetensors")
    assert_same_weights(load_model(str(tmp_path)), model)


def test_generation_config_lists_the_end_tokens(tmp_path: Path, hf_folder: Save) -> None:
    hf_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    loaded = load_model(str(tmp_path))
    assert loaded.config.eos_token_ids == loaded.tokenizer.eos_token_ids == (2, 0)


DOWN = "model.layers.0.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({DOWN: None}, f"tensor '{DOWN}' is missing"),
        ({"lm_head.weight": None, DOWN: None}, "2 tensors .'lm_head.weight', .* are missing"),
        ({"model.layers.0.mlp.router.weight": torch.ones(2)}, "router.weight' is not known for this architecture"),
        ({DOWN: torch.ones(48, 32)}, r"down_proj.weight' has shape \[48, 32\], expected \[32, 48\]"),
        ({DOWN: torch.ones(32, 48, dtype=torch.int8)}, "is stored as I8; only F32, F16, BF16"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, hf_folder: Save, change: dict[str, torch.Tensor | None], said: str
) -> None:
    hf_folder(tmp_path)
    weights = {**load_file(tmp_path / "model.safetensors"), **change}
    save_file({name: t for name, t in weights.items() if t is not None}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFormatError, match=said) as caught:
        load_model(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 4, 100, -1000, -1])
def test_truncated_weights(tmp_path: Path, hf_folder: Save, keep: int) -> None:
    hf_folder(tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:keep])
    said = f"truncated: {-keep} of {len(content)} bytes are missing" if keep < 0 else "truncated"
    with pytest.raises(ModelFormatError, match=said):
        load_model(str(tmp_path))


@pytest.mark.parametrize("header", [b"[]", b"{ ", b'{"a": {}}', b'{"a": {"dtype": "F32", "shape": 1}}', b"\xff\xfe"])
def test_a_damaged_weight_header(tmp_path: Path, hf_folder: Save, header: bytes) -> None:
    hf_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelFormatError, match=r"header is damaged"):
        load_model(str(tmp_path))


def test_shards_that_are_missing_or_elsewhere(tmp_path: Path, hf_folder: Save) -> None:
    hf_folder(tmp_path, shard="20KB")
    index = tmp_path / "model.safetensors.index.json"
    first = min(tmp_path.glob("model-*.safetensors"))
    first.unlink()
    with pytest.raises(ModelFormatError, match=f"shard '{first.name}' is missing"):
        load_model(str(tmp_path))
    index.write_text(json.dumps({"weight_map": {DOWN: "../elsewhere.safetensors"}}))
    with pytest.raises(ModelFormatError, match="'../elsewhere.safetensors' is not a file of this folder"):
        load_model(str(tmp_path))
    index.write_text("{}")
    with pytest.raises(ModelFormatError, match="weight_map is missing or empty"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", b"{", "config.json: is not valid JSON"),
        ("config.json", b"[]", "must hold a JSON object, not list"),
        ("config.json", b"{}", "architectures=None"),
        ("tokenizer.json", b"{}", "tokenizer.json: is not a tokenizer"),
        ("tokenizer.json", None, "holds no tokenizer"),
        ("model.safetensors", None, "only safetensors weights are read"),
    ],
)
def test_files_that_are_damaged_or_absent(
    tmp_path: Path, hf_folder: Save, name: str, content: bytes | None, said: str
) -> None:
    hf_folder(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelFormatError, match=said) as caught:
        load_model(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_tokenizer_of_older_files_is_converted_and_kept(tmp_path: Path, hf_folder: Save, cache: Path) -> None:
    hf_folder(tmp_path, "qwen2")
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in content["model"]["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    tokenizer = load_model(str(tmp_path)).tokenizer
    assert tokenizer.decode(tokenizer.encode("hello wor")) == "hello wor"
    assert len(tokenizer.encode("hello")) == 1
    assert len(list((cache / "tokenizers").iterdir())) == 1
