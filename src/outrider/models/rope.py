"""Inverse rotary frequencies of a model, with the scaling that its configuration asks for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outrider.models.config import ModelConfig
from outrider.ops.reference import rotary_frequencies


def scaled_frequencies(config: ModelConfig) -> Tensor:
    """Inverse frequencies [head_dim / 2] float32 after scaling, of layers without a base of their own.

    ``linear`` divides them by the factor (arXiv 2306.15595). ``llama3`` divides the long wavelengths by the factor,
    keeps the short ones and blends between (Llama 3.1's configuration).
    """
    frequencies = rotary_frequencies(config.head_dim, config.rope_theta)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position_embeddings / wavelengths
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0.0, 1.0)
    return torch.lerp(frequencies / scaling.factor, frequencies, keep)


def local_frequencies(config: ModelConfig) -> Tensor | None:
    """Inverse frequencies [head_dim / 2] float32 of the layers with a window, where those have a base of their own."""
    return None if config.local_rope_theta is None else rotary_frequencies(config.head_dim, config.local_rope_theta)
