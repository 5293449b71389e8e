"""Load a model by reference: the one entrance to this folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from outrider.models.config import ModelConfig
from outrider.models.loader import gguf, gguf_tokenizer, huggingface
from outrider.models.loader.gguf_file import GGUFFile
from outrider.models.loader.packaged import Progress
from outrider.models.loader.resolve import ModelSource, resolve
from outrider.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """Everything that a file says about a model; ``weights`` carry canonical names and lie in CPU memory."""

    config: ModelConfig
    weights: Mapping[str, torch.Tensor]
    tokenizer: Tokenizer
    source: ModelSource

    @property
    def name(self) -> str:
        """What to call the model."""
        return self.source.name


def load_model(reference: str, dtype: torch.dtype = torch.float32, progress: Progress | None = None) -> LoadedModel:
    """Load the model that ``reference`` names (alias, ``.gguf`` file, folder or hub id), its weights as ``dtype``.

    Raises ``ModelNotFoundError`` if there is no such model, ``ModelFormatError`` if it is damaged or not supported.
    """
    source = resolve(reference, progress)
    if source.kind == "gguf":
        return _load_gguf(source, dtype)
    config = huggingface.read_config(source.path)
    tokenizer = huggingface.load_tokenizer(source.path, config)
    config = replace(config, eos_token_ids=tokenizer.eos_token_ids)
    return LoadedModel(config, huggingface.read_weights(source.path, config, dtype), tokenizer, source)


def _load_gguf(source: ModelSource, dtype: torch.dtype) -> LoadedModel:
    file = GGUFFile(source.path)
    config = gguf.read_config(file)
    tokenizer = gguf_tokenizer.load_tokenizer(file)
    config = replace(config, eos_token_ids=tokenizer.eos_token_ids)
    return LoadedModel(config, gguf.read_weights(file, config, dtype), tokenizer, source)
