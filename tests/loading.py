"""Models with their weights as dense tensors, and the logits that a decoder gives for a whole text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from outrider.models.base import CausalModel
from outrider.models.config import ModelConfig
from outrider.models.loader.load import open_model
from outrider.models.loader.resolve import ModelSource
from outrider.models.logits import Rows
from outrider.models.tokenizer import Tokenizer
from outrider.runner.model_runner import Chunk, ModelRunner
from outrider.torch_backend.decoder import as_tensor


@dataclass(frozen=True)
class LoadedModel:
    """A model with every weight under its canonical name, in CPU memory."""

    config: ModelConfig
    weights: Mapping[str, torch.Tensor]
    tokenizer: Tokenizer
    source: ModelSource


def load_model(reference: str, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Open the model that ``reference`` names and read its weights as ``dtype``."""
    opened = open_model(reference)
    weights = {name: as_tensor(values, dtype) for name, values in opened.dense_weights()}
    return LoadedModel(opened.config, weights, opened.tokenizer, opened.source)


def runner_for(model: CausalModel, num_tokens: int, *, block_size: int = 4) -> ModelRunner:
    """A runner with room for ``num_tokens`` tokens of a request ``x``."""
    runner = ModelRunner(model, num_blocks=-(-num_tokens // block_size), block_size=block_size)
    assert runner.kv.allocate("x", num_tokens)
    return runner


def logits_of(model: CausalModel, token_ids: Sequence[int]) -> Rows:
    """Logits [tokens, vocab] after each of ``token_ids``, from one pass."""
    chunk = Chunk("x", token_ids, 0, num_logits=len(token_ids))
    return runner_for(model, len(token_ids)).forward([chunk]).logits[0].rows(slice(None))


def largest_difference(one: Rows, other: Rows) -> float:
    """Between any two logits at the same place, over the largest of ``other``."""
    return float(np.abs(one - other).max() / np.abs(other).max())
