"""A Hugging Face folder: configuration, safetensors weights (sharded or not) and tokenizer.

The files are untrusted: whatever is wrong with one becomes a ``ModelFormatError``.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.models.loader.gguf_tokenizer import cached_backend
from outrider.models.loader.shapes import Shape, check_weights, expected_shapes
from outrider.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

_READ_TYPES = ("F32", "F16", "BF16")

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


def read_weights(folder: Path, config: ModelConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every weight under its canonical name, converted to ``dtype``.

    Raises ``ModelFormatError`` naming a tensor that is missing, not known, of a wrong shape or of a type other than
    F32, F16 and BF16, or a file that is missing or truncated.
    """
    from safetensors import SafetensorError, safe_open

    where: dict[str, Path] = {}
    found: dict[str, Shape] = {}
    for path in _weight_files(folder):
        for name, shape in _read_header(path).items():
            if name in where:
                raise ModelFormatError(f"{path}: tensor {name!r} is in {where[name].name} too; fetch the model again")
            where[name], found[name] = path, shape
    shapes, offset = expected_shapes(config), config.family in _OFFSET_NORM_FAMILIES
    wanted = {name: (huggingface_name(name, config.sandwich_norms), shape) for name, shape in shapes.items()}
    ignored = {name for name in found if name.endswith("rotary_emb.inv_freq")}
    if config.tie_word_embeddings:
        ignored.add(_GLOBAL_NAMES["lm_head"])
    check_weights(folder, wanted, {name: shape for name, shape in found.items() if name not in ignored})
    weights: dict[str, torch.Tensor] = {}
    for path in dict.fromkeys(where.values()):
        try:
            with safe_open(path, framework="pt") as file:
                for name, (stored, _) in wanted.items():
                    if where[stored] == path:
                        tensor = file.get_tensor(stored)
                        weights[name] = (tensor.float() + 1 if offset and name.endswith("norm") else tensor).to(dtype)
        except (SafetensorError, OSError) as error:
            raise ModelFormatError(f"{path}: cannot be read ({error}); fetch it again") from None
    return {name: weights[name] for name in wanted}


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


def _read_header(path: Path) -> dict[str, Shape]:
    """Name -> shape of the file's tensors; checks types and that the file is as long as its header says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= size - 8:
            raise ModelFormatError(f"{path}: this is no safetensors file, or it is truncated ({size} bytes)")
        header = file.read(length)
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        table = {
            name: (entry["dtype"], tuple(map(int, entry["shape"])), int(entry["data_offsets"][1]))
            for name, entry in entries.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelFormatError(f"{path}: the safetensors header is damaged ({error}); fetch the file again") from None
    missing = 8 + length + max((end for _, _, end in table.values()), default=0) - size
    if missing > 0:
        raise ModelFormatError(f"{path}: the file is truncated: {missing} of {size + missing} bytes are missing")
    for name, (kind, shape, _) in table.items():
        if kind not in _READ_TYPES and not name.endswith("rotary_emb.inv_freq"):
            raise ModelFormatError(
                f"{path}: tensor {name!r} {list(shape)} is stored as {kind}; only {', '.join(_READ_TYPES)} are read, "
                "so use the unquantized checkpoint or a .gguf file"
            )
    return {name: shape for name, (_, shape, _) in table.items()}


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
    return cached_backend(digest.hexdigest(), lambda: _converted(folder))


def _converted(folder: Path) -> tokenizers.Tokenizer:
    from transformers import AutoTokenizer

    try:
        backend: tokenizers.Tokenizer = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    except Exception as error:  # a third-party conversion of untrusted data: anything may come
        reason = " ".join(str(error).split())
        raise ModelFormatError(f"{folder}: its tokenizer cannot be converted: {reason}") from None
    return backend
