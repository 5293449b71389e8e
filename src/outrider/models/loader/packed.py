"""Weights for the native kernels: matrices in packed formats, vectors in float32, under the canonical names.

A GGUF tensor keeps its own density wherever the kernels know its type; see ``models.packing``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from outrider.models.config import ModelConfig
from outrider.models.loader import gguf
from outrider.models.loader.gguf_file import GGUFFile
from outrider.models.packing import float32_of, gguf_format, has_layout, pack_dense, pack_gguf_tensor

if TYPE_CHECKING:
    from outrider.native import library

Vector = NDArray[np.float32]
PackedWeights = Mapping[str, "library.PackedMatrix | Vector"]
DEFAULT_FORMAT = "bf16"


def from_gguf(
    file: GGUFFile, config: ModelConfig, weight_format: str | None, head_rows: Sequence[int] | None = None
) -> PackedWeights:
    """Pack a GGUF file's weights; ``weight_format`` None keeps each tensor's own. Raises ``ModelFormatError``."""
    shapes = gguf.checked_shapes(file, config)

    def matrix(name: str, rows: Sequence[int] | None) -> library.PackedMatrix:
        stored, (count, cols) = shapes[name]
        kind, order = file.tensors[stored].type_id, gguf.row_order(config, name)
        if rows is not None:  # only the output is trimmed, and its rows lie in order
            count, order = len(rows), np.asarray(rows, dtype=np.int64)
        if weight_format not in (None, gguf_format(kind)):
            return pack_dense(gguf.float_weight(file, stored, (count, cols), order), weight_format)
        raw = file.raw(stored)
        if rows is not None:
            raw, order = raw[order], None
        return pack_gguf_tensor(raw, kind, (count, cols), order)

    def vector(name: str) -> Vector:
        stored, shape = shapes[name]
        return gguf.float_weight(file, stored, shape, gguf.row_order(config, name))

    types = {file.tensors[stored].type_id for stored, shape in shapes.values() if len(shape) > 1}
    dequantizes = any(not has_layout(kind) or weight_format not in (None, gguf_format(kind)) for kind in types)
    dims = {name: len(shape) for name, (_, shape) in shapes.items()}
    return _pack(dims, matrix, vector, head_rows, threads=(os.cpu_count() or 1) if dequantizes else 1)


def from_huggingface(
    folder: Path, config: ModelConfig, weight_format: str | None, head_rows: Sequence[int] | None = None
) -> PackedWeights:
    """Pack a folder's weights as ``weight_format``, by default bf16. Raises ``ModelFormatError``."""
    from outrider.models.loader import huggingface

    weights = huggingface.open_weights(folder, config)

    def matrix(name: str, rows: Sequence[int] | None) -> library.PackedMatrix:
        weight = weights[name]
        return pack_dense(weight if rows is None else weight[np.asarray(rows)], weight_format or DEFAULT_FORMAT)

    dims = {name: weight.ndim for name, weight in weights.items()}
    return _pack(dims, matrix, lambda name: np.array(float32_of(weights[name])), head_rows)


def _pack(
    dims: Mapping[str, int],
    matrix: Callable[[str, Sequence[int] | None], library.PackedMatrix],
    vector: Callable[[str], Vector],
    head_rows: Sequence[int] | None,
    threads: int = 1,
) -> PackedWeights:
    """Pack all weights. A trimmed output is rows of ``lm_head`` or, where that is tied, of ``embed``.

    The library packs each matrix with all of its threads; ``threads`` above 1 are for work in NumPy.
    """
    head = "lm_head" if "lm_head" in dims else "embed"

    def read(name: str) -> library.PackedMatrix | Vector:
        if dims[name] == 1:
            return vector(name)
        return matrix(name, head_rows if name == "lm_head" else None)

    if threads > 1:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            packed = dict(zip(dims, pool.map(read, dims), strict=True))
    else:
        packed = {name: read(name) for name in dims}
    if head_rows is not None and head == "embed":
        packed["lm_head"] = matrix(head, head_rows)
    return packed
