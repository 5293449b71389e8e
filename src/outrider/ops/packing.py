"""Packed weight formats of the native kernels: which there are, how dense they are, and how weights come into them.

Knows tensors and their types, not which layer they belong to. The layouts themselves are in ``csrc/formats.h``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ConfigError, ModelFormatError

if TYPE_CHECKING:
    from torch import Tensor

    from outrider._native import PackedMatrix

GROUP = 32
"""Columns that share a scale, of weights and activations alike."""

BITS_PER_WEIGHT = {
    "f32": 32.0,
    "bf16": 16.0,
    "q8_0": 8.5,
    "q4_0": 4.5,
    "q4_1": 5.0,
    "q5_0": 5.5,
    "q5_1": 6.0,
    "q4_k": 4.625,
    "q5_k": 5.625,
    "q6_k": 6.5625,
}
"""Stored bits per weight of each packed format, scales included."""

QUANTIZATIONS = {"none": "bf16", "int8": "q8_0", "int4": "q4_1"}
"""``--quantization`` of float weights: the packed format of each choice."""

_NATIVE_GGUF_TYPES = {0: "f32", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0"} | {
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    30: "bf16",
}
_F16 = 1


def packed_format(quantization: str) -> str:
    """The packed format that ``--quantization`` names. Raises ``ConfigError``."""
    if quantization not in QUANTIZATIONS:
        raise ConfigError(f"quantization {quantization!r} is not one of {', '.join(QUANTIZATIONS)}")
    return QUANTIZATIONS[quantization]


def gguf_format(ggml_type: int) -> str:
    """The packed format in which a GGUF tensor of this type is kept.

    Exact for the types with a layout of their own. F16 becomes bf16 (8 of its 11 significant bits); every other type is
    dequantized and kept as ``q8_0``.
    """
    return _NATIVE_GGUF_TYPES.get(ggml_type, "bf16" if ggml_type == _F16 else "q8_0")


def pack_gguf_tensor(
    raw: NDArray[np.uint8],
    ggml_type: int,
    shape: tuple[int, int],
    order: Sequence[int] | NDArray[np.signedinteger[Any]] | None = None,
) -> PackedMatrix:
    """Pack a GGUF tensor's bytes. ``shape`` is (rows, cols); packed row i takes row ``order[i]``.

    Raises ``ModelFormatError`` when the bytes do not fit the shape or a scale is not finite.
    """
    from outrider import _native

    rows, cols = shape
    places = None if order is None else np.asarray(order, dtype=np.int64)
    flat = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    try:
        if ggml_type in _NATIVE_GGUF_TYPES:
            return _native.pack_gguf(flat, ggml_type, rows, cols, places)
        return _native.pack_float(_dequantized(flat, ggml_type, shape), gguf_format(ggml_type), places)
    except ValueError as error:
        raise ModelFormatError(f"a tensor of shape {shape!r} and GGUF type {ggml_type!r}: {error}") from error


def _dequantized(flat: NDArray[np.uint8], ggml_type: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    import gguf
    from gguf.quants import dequantize

    try:
        kind = gguf.GGMLQuantizationType(ggml_type)
        values = dequantize(flat.reshape(shape[0], -1), kind)
    except (NotImplementedError, ValueError) as error:
        raise ValueError(f"cannot be dequantized ({error})") from error
    if values.shape != shape:
        raise ValueError(f"holds {values.size} values")
    return np.ascontiguousarray(values, dtype=np.float32)


def pack_weight(weight: Tensor | NDArray[np.float32], quantization: str = "none") -> PackedMatrix:
    """Pack float weights [out, in] as ``--quantization`` says. Raises as ``packed_format`` and ``pack_dense`` do."""
    return pack_dense(weight, packed_format(quantization))


def pack_dense(weight: Tensor | NDArray[np.float32], weight_format: str) -> PackedMatrix:
    """Pack float weights [out, in] in a packed format; those in groups are rounded to nearest.

    Torch tensors in float32 and bfloat16 enter as they are, others as float32. Raises ``ModelFormatError`` for
    weights that are not finite or not two-dimensional.
    """
    import torch

    from outrider import _native

    tensor = torch.as_tensor(weight).detach()
    if tensor.dtype not in (torch.float32, torch.bfloat16):
        tensor = tensor.float()
    try:
        return _native.pack_float(tensor.contiguous().cpu(), weight_format)
    except ValueError as error:
        raise ModelFormatError(f"a weight of shape {tuple(tensor.shape)!r}: {error}") from error


def unpack(matrix: PackedMatrix) -> NDArray[np.float32]:
    """The weights that ``matrix`` stands for, [rows, cols]."""
    from outrider import _native

    return _native.embedding(matrix, np.arange(matrix.rows, dtype=np.int64))
