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
    if scaling is None:
        return frequencies
    stretched = frequencies / np.float32(scaling.factor)
    if scaling.kind == "linear":
        return stretched
    turns = scaling.original_max_position_embeddings / (2 * math.pi / frequencies)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clip(0.0, 1.0)
    step = frequencies - stretched
    blended: Frequencies = np.where(keep < 0.5, stretched + keep * step, frequencies - (1 - keep) * step)
    return blended


def local_frequencies(config: ModelConfig) -> Frequencies | None:
    """Inverse frequencies [head_dim / 2] of the layers with a window, where those have a base of their own."""
    return None if config.local_rope_theta is None else _frequencies(config.head_dim, config.local_rope_theta)


def _frequencies(head_dim: int, theta: float) -> Frequencies:
    """``theta^(-2i/head_dim)``, [head_dim / 2] (arXiv 2104.09864).

    Rounded to float32 where the models' own training rounded them: exponent, power, and its inverse.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = (theta ** exponents.astype(np.float64)).astype(np.float32)
    return np.float32(1) / powers
