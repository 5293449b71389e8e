"""Inverse rotary frequencies of a model, with the scaling that its configuration asks for."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from outrider.models.config import ModelConfig

Frequencies = NDArray[np.float32]


def scaled_frequencies(config: ModelConfig) -> Frequencies:
    """Inverse frequencies [head_dim / 2] after scaling, of layers without a base of their own.

    ``linear`` divides them by the factor (arXiv 2306.15595). ``llama3`` divides the long wavelengths by the factor,
    keeps the short ones and blends between (Llama 3.1's configuration).
    """
    frequencies = _frequencies(config.head_dim, config.rope_theta)
    scaling = config.rope_scaling
    if scaling is not None:
        keep: NDArray[np.float64] | float = 0.0
        if scaling.kind == "llama3":
            turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
            keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
            keep = np.clip(keep, 0.0, 1.0)
        frequencies = (1.0 - keep) * frequencies / scaling.factor + keep * frequencies
    return frequencies.astype(np.float32)


def local_frequencies(config: ModelConfig) -> Frequencies | None:
    """Inverse frequencies [head_dim / 2] of the layers with a window, where those have a base of their own."""
    if config.local_rope_theta is None:
        return None
    return _frequencies(config.head_dim, config.local_rope_theta).astype(np.float32)


def _frequencies(head_dim: int, theta: float) -> NDArray[np.float64]:
    """``theta^(-2i/head_dim)``, [head_dim / 2] (arXiv 2104.09864)."""
    frequencies: NDArray[np.float64] = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    return frequencies
