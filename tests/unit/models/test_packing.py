"""Weights into packed formats: GGUF tensors of every kind, float weights, and what is refused."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from outrider import native
from outrider.errors import ConfigError, ModelFormatError
from outrider.models import packing

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")

EXACT = ["F32", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]  # the types that the gguf package can also write


@pytest.mark.parametrize("name", EXACT)
def test_gguf_tensors_keep_their_values(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    weights = np.random.default_rng(0).standard_normal((21, 96)).astype(np.float32)
    raw = quantize(weights, kind).view(np.uint8)
    matrix = packing.pack_gguf_tensor(raw, int(kind), (21, 96))
    assert matrix.format == packing.gguf_format(int(kind)) == name.lower()
    expected = dequantize(raw, kind) if name not in ("F32",) else weights
    assert np.array_equal(packing.unpack(matrix), expected)


@pytest.mark.parametrize("name", packing.BITS_PER_WEIGHT)
def test_density(name: str) -> None:
    """The bytes of a whole number of blocks are the bits per weight that are promised."""
    weights = np.zeros((32, 512), np.float32)
    if name in ("f32", "bf16", "q8_0", "q4_1"):
        nbytes = native.library.pack_float(weights, name).nbytes
    else:
        kind = gguf.GGMLQuantizationType[name.upper()]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = np.zeros(weights.size // block * size, np.uint8)
        nbytes = packing.pack_gguf_tensor(raw, int(kind), (32, 512)).nbytes
    assert nbytes * 8 == weights.size * packing.BITS_PER_WEIGHT[name]


def nearest_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Bits of the nearest bfloat16 numbers, of two equally near ones the even one."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def test_half_precision_becomes_bf16() -> None:
    weights = np.random.default_rng(1).standard_normal((4, 10)).astype(np.float16)
    matrix = packing.pack_gguf_tensor(weights.view(np.uint8), int(gguf.GGMLQuantizationType.F16), (4, 10))
    assert matrix.format == "bf16"
    assert np.array_equal(packing.unpack(matrix), packing.float_of_bfloat16(nearest_bfloat16(weights)))


def test_other_types_become_eight_bits() -> None:
    """IQ4_NL has no layout of its own: kept as q8_0, within half a step of its values."""
    kind = gguf.GGMLQuantizationType.IQ4_NL
    rng = np.random.default_rng(2)
    raw = rng.integers(0, 256, (6, 2, 18), dtype=np.uint8)
    raw[:, :, :2] = rng.uniform(0.01, 0.02, (6, 2, 1)).astype(np.float16).view(np.uint8)
    raw = raw.reshape(6, -1)
    matrix = packing.pack_gguf_tensor(raw, int(kind), (6, 64))
    assert matrix.format == "q8_0"
    expected = dequantize(raw, kind)
    step = np.abs(expected).reshape(6, 2, 32).max(-1).repeat(32, 1) / 127
    assert (np.abs(packing.unpack(matrix) - expected) <= 0.51 * step).all()


@pytest.mark.parametrize(("quantization", "fmt", "steps"), [("int8", "q8_0", 254), ("int4", "q4_1", 15)])
def test_quantizing_rounds_to_nearest(quantization: str, fmt: str, steps: int) -> None:
    weights = np.random.default_rng(3).standard_normal((19, 80)).astype(np.float32)
    matrix = packing.pack_dense(weights, packing.packed_format(quantization))
    assert matrix.format == fmt
    groups = weights[:, :64].reshape(19, 2, 32)  # the whole ones
    extent = 2 * np.abs(groups).max(-1) if quantization == "int8" else groups.max(-1) - groups.min(-1)
    step = extent / steps
    error = np.abs(packing.unpack(matrix) - weights)[:, :64].reshape(19, 2, 32)
    # Half a step; the scale itself is rounded to 11 bits, the minimum too, and the outermost codes are clamped.
    assert (error.max(-1) <= step * 0.5 + np.abs(weights).max() * 2**-10).all()


def test_bfloat16_weights_enter_as_they_are() -> None:
    bits = nearest_bfloat16(np.random.default_rng(4).standard_normal((5, 33)))
    matrix = packing.pack_dense(bits, "bf16")
    assert np.array_equal(packing.unpack(matrix), packing.float_of_bfloat16(bits))


def test_bad_input_is_named() -> None:
    with pytest.raises(ConfigError, match="quantization 'int3' is not one of none, int8, int4"):
        packing.packed_format("int3")
    with pytest.raises(ModelFormatError, match=r"\(4, 64\) and GGUF type 2: bytes of the tensor: 100, expected 144"):
        packing.pack_gguf_tensor(np.zeros(100, np.uint8), 2, (4, 64))
    with pytest.raises(ModelFormatError, match="GGUF type 99"):
        packing.pack_gguf_tensor(np.zeros(128, np.uint8), 99, (4, 32))
    with pytest.raises(ModelFormatError, match="weight inf at row 0, column 1 is not finite"):
        packing.pack_dense(np.array([[0.0, np.inf]]), "bf16")
    with pytest.raises(ModelFormatError, match="row 0 of a weight matrix has a scale that is not finite"):
        packing.pack_dense(np.full((1, 32), 1e38), "q8_0")
    with pytest.raises(ModelFormatError, match="must be"):
        packing.pack_dense(np.zeros(3), "bf16")
