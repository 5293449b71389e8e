"""Weights for the native kernels: matrices in packed formats, vectors in float32, under the canonical names.

A GGUF tensor keeps its own density wherever the kernels know its type; see ``ops.packing``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.models.config import ModelConfig
from outrider.models.loader import gguf, huggingface
from outrider.models.loader.gguf_file import GGUFFile
from outrider.ops.packing import gguf_format, pack_dense, pack_gguf_tensor

if TYPE_CHECKING:
    from outrider._native import PackedMatrix

Vector = NDArray[np.float32]
PackedWeights = Mapping[str, "PackedMatrix | Vector"]
DEFAULT_FORMAT = "bf16"


def from_gguf(
    file: GGUFFile, config: ModelConfig, weight_format: str | None, head_rows: Sequence[int] | None = None
) -> PackedWeights:
    """Pack a GGUF file's weights; ``weight_format`` None keeps each tensor's own. Raises ``ModelFormatError``."""
    shapes = gguf.checked_shapes(file, config)

    def matrix(name: str, rows: Sequence[int] | None) -> PackedMatrix:
        stored, (_, cols) = shapes[name]
        kind, raw = file.tensors[stored].type_id, file.raw(stored)
        order = gguf.row_order(config, name) if rows is None else np.asarray(rows, dtype=np.intp)
        shape = (raw.shape[0] if order is None else len(order), cols)
        if weight_format in (None, gguf_format(kind)):
            return pack_gguf_tensor(raw if order is None else raw[order], kind, shape)
        return pack_dense(gguf.dequantized(file, stored, shape, torch.float32, order), weight_format)

    def vector(name: str) -> Vector:
        stored, shape = shapes[name]
        return np.asarray(gguf.dequantized(file, stored, shape, torch.float32, gguf.row_order(config, name)).numpy())

    return _pack({name: len(shape) for name, (_, shape) in shapes.items()}, matrix, vector, head_rows)


def from_huggingface(
    folder: Path, config: ModelConfig, weight_format: str | None, head_rows: Sequence[int] | None = None
) -> PackedWeights:
    """Pack a folder's weights as ``weight_format``, by default bf16. Raises ``ModelFormatError``."""
    weights = huggingface.read_weights(folder, config, torch.float32)

    def matrix(name: str, rows: Sequence[int] | None) -> PackedMatrix:
        weight = weights[name]
        return pack_dense(weight if rows is None else weight[list(rows)], weight_format or DEFAULT_FORMAT)

    dims = {name: weight.ndim for name, weight in weights.items()}
    return _pack(dims, matrix, lambda name: np.asarray(weights[name].numpy()), head_rows)


def _pack(
    dims: Mapping[str, int],
    matrix: Callable[[str, Sequence[int] | None], PackedMatrix],
    vector: Callable[[str], Vector],
    head_rows: Sequence[int] | None,
) -> PackedWeights:
    """Pack all weights in parallel. A trimmed output is rows of ``lm_head`` or, where that is tied, of ``embed``."""
    head = "lm_head" if "lm_head" in dims else "embed"

    def read(name: str) -> PackedMatrix | Vector:
        if dims[name] == 1:
            return vector(name)
        return matrix(name, head_rows if name == "lm_head" else None)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        packed = dict(zip(dims, pool.map(read, dims), strict=True))
    if head_rows is not None and head == "embed":
        packed["lm_head"] = matrix(head, head_rows)
    return packed
