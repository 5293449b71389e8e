"""Packed weight formats of the native kernels: which there are, how dense they are, and how weights come into them.

Knows arrays and their types, not which layer they belong to. The layouts themselves are in ``csrc/formats.h``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outrider import native
from outrider.errors import ConfigError, ModelFormatError

if TYPE_CHECKING:
    from outrider.native import library

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
_F32, _F16, _BF16 = 0, 1, 30
_CHUNK_VALUES = 1 << 18
"""Values dequantized at a time: bounds what exists beside the finished weights."""


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


def has_layout(ggml_type: int) -> bool:
    """True if GGUF tensors of this type are packed as they are; all others are dequantized first."""
    return ggml_type in _NATIVE_GGUF_TYPES


def pack_gguf_tensor(
    raw: NDArray[np.uint8], ggml_type: int, shape: tuple[int, int], order: NDArray[np.int64] | None = None
) -> library.PackedMatrix:
    """Pack a GGUF tensor's bytes. ``shape`` is (rows, cols); packed row i takes row ``order[i]``.

    Raises ``ModelFormatError`` when the bytes do not fit the shape or a scale is not finite.
    """
    rows, cols = shape
    flat = np.ascontiguousarray(raw).reshape(-1)
    try:
        if has_layout(ggml_type):
            return native.library.pack_gguf(flat, ggml_type, rows, cols, order)
        return native.library.pack_float(_dequantized(flat, ggml_type, shape), gguf_format(ggml_type), order)
    except ValueError as error:
        raise ModelFormatError(f"a tensor of shape {shape!r} and GGUF type {ggml_type!r}: {error}") from error


def _dequantized(flat: NDArray[np.uint8], ggml_type: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    try:
        values = dequantized(flat.reshape(shape[0], -1), ggml_type)
    except NotImplementedError as error:
        raise ValueError(f"cannot be dequantized ({error})") from error
    if values.shape != shape:
        raise ValueError(f"holds {values.size} values")
    return values


def dequantized(raw: NDArray[np.uint8], ggml_type: int) -> NDArray[np.float32]:
    """The values of a GGUF tensor's bytes ``raw`` [rows, bytes per row]: [rows, cols], not a view of them.

    Raises ``NotImplementedError`` or ``ValueError`` for a type that the ``gguf`` package cannot dequantize.
    """
    if ggml_type in (_F32, _F16):
        return raw.view("<f4" if ggml_type == _F32 else "<f2").astype(np.float32)
    if ggml_type == _BF16:
        return float_of_bfloat16(raw.view("<u2"))
    from gguf import GGMLQuantizationType, dequantize, quant_shape_from_byte_shape

    kind = GGMLQuantizationType(ggml_type)
    rows, cols = quant_shape_from_byte_shape(raw.shape, kind)
    result = np.empty((rows, cols), dtype=np.float32)
    step = max(1, _CHUNK_VALUES // cols)
    for start in range(0, rows, step):
        # Blocks do not cross rows, so rows laid end to end give the same values in far fewer array operations.
        chunk = np.ascontiguousarray(raw[start : start + step]).reshape(1, -1)
        result[start : start + step].reshape(-1)[:] = dequantize(chunk, kind)[0]
    return result


def float_of_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of bfloat16 numbers."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_of(weight: NDArray[Any]) -> NDArray[np.float32]:
    """``weight`` in float32, itself where it is; uint16 are the bits of bfloat16."""
    return float_of_bfloat16(weight) if weight.dtype == np.uint16 else weight.astype(np.float32, copy=False)


def pack_dense(weight: NDArray[Any], weight_format: str) -> library.PackedMatrix:
    """Pack float weights [out, in] in a packed format; those in groups are rounded to nearest.

    float32 and bfloat16 (uint16 of its bits) enter as they are, others as float32. Raises ``ModelFormatError`` for
    weights that are not finite or not two-dimensional.
    """
    values = weight if weight.dtype in (np.float32, np.uint16) else weight.astype(np.float32)
    try:
        return native.library.pack_float(np.require(values, requirements=["C", "A"]), weight_format)
    except ValueError as error:
        raise ModelFormatError(f"a weight of shape {weight.shape!r}: {error}") from error


def unpack(matrix: library.PackedMatrix) -> NDArray[np.float32]:
    """The weights that ``matrix`` stands for, [rows, cols]."""
    return native.library.embedding(matrix, np.arange(matrix.rows, dtype=np.int64))
