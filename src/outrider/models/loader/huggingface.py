"""A Hugging Face folder: configuration, safetensors weights (sharded or not) and tokenizer.

The files are untrusted: whatever is wrong with one becomes a ``ModelFormatError``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from outrider.errors import ModelFormatError
from outrider.extras import torch_backend
from outrider.models.config import ModelConfig
from outrider.models.loader.gguf_tokenizer import cached_backend
from outrider.models.loader.safetensors_file import SafetensorsFile
from outrider.models.loader.shapes import check_weights, expected_shapes
from outrider.models.packing import float32_of
from outrider.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

_GLOBAL_NAMES = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "lm_head": "lm_head.weight"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
}
_SANDWICH_NAMES = {
    "post_attn_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "post_mlp_norm": "post_feedforward_layernorm.weight",
}
"""Layers with second norms give the name of ``mlp_norm`` another meaning."""

_OFFSET_NORM_FAMILIES = ("gemma3",)
"""Families whose norms multiply by 1 + weight: the 1 is added here, as it already is in GGUF files."""

_SLOW_TOKENIZER_FILES = ("tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json")


def huggingface_name(name: str, sandwich_norms: bool = False) -> str:
    """The file's name of a canonical weight: ``layers.3.q`` -> ``model.layers.3.self_attn.q_proj.weight``."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    _, layer, part = name.split(".")
    names = _LAYER_NAMES | _SANDWICH_NAMES if sandwich_norms else _LAYER_NAMES
    return f"model.layers.{layer}.{names[part]}"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ``ModelFormatError`` if it cannot be read or is not an object."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ModelFormatError(f"{path}: is not valid JSON ({error}); fetch it again") from None
    if not isinstance(content, dict):
        raise ModelFormatError(f"{path}: must hold a JSON object, not {type(content).__name__}")
    return content


def _json_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def read_config(folder: Path) -> ModelConfig:
    """Configuration of the folder; ``generation_config.json``'s list of end tokens goes before ``config.json``'s."""
    values = read_json(folder / "config.json")
    generation = _json_if_there(folder / "generation_config.json")
    if generation.get("eos_token_id") is not None:
        values["eos_token_id"] = generation["eos_token_id"]
    try:
        return ModelConfig.from_hf(values)
    except ModelFormatError as error:
        raise ModelFormatError(f"{folder}: {error}") from None


def open_weights(folder: Path, config: ModelConfig) -> dict[str, NDArray[Any]]:
    """Every weight under its canonical name, as it is stored: float32, float16, or uint16 with the bits of bfloat16.

    They are views of the mapped files, but for norms to which something is added. Raises ``ModelFormatError`` naming a
    tensor that is missing, not known, of a wrong shape or of a type other than F32, F16 and BF16, or a file that is
    missing or truncated.
    """
    where: dict[str, SafetensorsFile] = {}
    for path in _weight_files(folder):
        file = SafetensorsFile(path)
        for name in file.tensors:
            if name in where:
                other = where[name].path.name
                raise ModelFormatError(f"{path}: tensor {name!r} is in {other} too; fetch the model again")
            where[name] = file
    shapes, offset = expected_shapes(config), config.family in _OFFSET_NORM_FAMILIES
    wanted = {name: (huggingface_name(name, config.sandwich_norms), shape) for name, shape in shapes.items()}
    ignored = {name for name in where if name.endswith("rotary_emb.inv_freq")}
    if config.tie_word_embeddings:
        ignored.add(_GLOBAL_NAMES["lm_head"])
    found = {name: file.tensors[name].shape for name, file in where.items() if name not in ignored}
    check_weights(folder, wanted, found)
    weights: dict[str, NDArray[Any]] = {}
    for name, (stored, _) in wanted.items():
        view = where[stored].view(stored)
        weights[name] = float32_of(view) + 1 if offset and name.endswith("norm") else view
    return weights


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelFormatError(f"{index}: weight_map is missing or empty; fetch it again")
        names = sorted({str(name) for name in weight_map.values()})
        if outside := next((name for name in names if Path(name).name != name), None):
            raise ModelFormatError(f"{index}: shard {outside!r} is not a file of this folder")
        if missing := next((name for name in names if not (folder / name).is_file()), None):
            raise ModelFormatError(f"{folder}: shard {missing!r} is missing; fetch the model again")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    if not single.is_file():
        raise ModelFormatError(
            f"{folder}: holds no model.safetensors and no index of shards; only safetensors weights are read, "
            "so convert others first"
        )
    return [single]


def load_tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    """Tokenizer of the folder, from ``tokenizer.json`` or converted by transformers where only older files are.

    Raises ``ModelFormatError`` if there is none or it is damaged.
    """
    settings = _json_if_there(folder / "tokenizer_config.json")
    backend = _backend(folder)
    named = {name: _text(settings.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    ids = {name: backend.token_to_id(text) for name, text in named.items() if text is not None}
    ends = config.eos_token_ids or tuple(id for id in [ids.get("eos_token")] if id is not None)
    return Tokenizer(
        backend,
        bos_token_id=ids.get("bos_token", config.bos_token_id),
        eos_token_ids=ends,
        chat_template=_chat_template(folder, settings),
        named_tokens={name: text for name, text in named.items() if text is not None},
    )


def _text(token: Any) -> str | None:
    if isinstance(token, dict):  # an added token written out with its flags
        token = token.get("content")
    return token if isinstance(token, str) else None


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named ones
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _backend(folder: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend

    ready = folder / "tokenizer.json"
    if ready.is_file():
        try:
            return Backend.from_file(str(ready))
        except Exception as error:  # the library raises bare exceptions
            raise ModelFormatError(f"{ready}: is not a tokenizer ({error}); fetch it again") from None
    older = [folder / name for name in _SLOW_TOKENIZER_FILES if (folder / name).is_file()]
    if not any(path.name in ("tokenizer.model", "vocab.json") for path in older):
        raise ModelFormatError(f"{folder}: holds no tokenizer (tokenizer.json, tokenizer.model or vocab.json)")
    digest = hashlib.sha256()
    for path in older:
        digest.update(path.read_bytes())
    what = f"the tokenizer of {str(folder)!r}, which has no tokenizer.json,"

    def converted() -> tokenizers.Tokenizer:
        backend: tokenizers.Tokenizer = torch_backend("tokenizers", what).converted(folder)
        return backend

    return cached_backend(digest.hexdigest(), converted)
