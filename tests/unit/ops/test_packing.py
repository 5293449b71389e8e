"""Weights into packed formats: GGUF tensors of every kind, float weights, and what is refused."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize

from outrider.errors import ConfigError, ModelFormatError
from outrider.ops import packing

pytest.importorskip("outrider._native", reason="the native library is not built")

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
    from outrider import _native

    weights = np.zeros((32, 512), np.float32)
    if name in ("f32", "bf16", "q8_0", "q4_1"):
        nbytes = _native.pack_float(weights, name).nbytes
    else:
        kind = gguf.GGMLQuantizationType[name.upper()]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = np.zeros(weights.size // block * size, np.uint8)
        nbytes = packing.pack_gguf_tensor(raw, int(kind), (32, 512)).nbytes
    assert nbytes * 8 == weights.size * packing.BITS_PER_WEIGHT[name]


def test_half_precision_becomes_bf16() -> None:
    weights = np.random.default_rng(1).standard_normal((4, 10)).astype(np.float16)
    matrix = packing.pack_gguf_tensor(weights.view(np.uint8), int(gguf.GGMLQuantizationType.F16), (4, 10))
    assert matrix.format == "bf16"
    expected = torch.from_numpy(weights.astype(np.float32)).bfloat16().float().numpy()
    assert np.array_equal(packing.unpack(matrix), expected)


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
    weights = torch.randn(19, 80, generator=torch.Generator().manual_seed(3))
    matrix = packing.pack_weight(weights, quantization)
    assert matrix.format == fmt
    padded = torch.nn.functional.pad(weights, (0, 16)).view(19, 3, 32)[:, :2]  # the whole groups
    extent = 2 * padded.abs().amax(-1) if quantization == "int8" else padded.amax(-1) - padded.amin(-1)
    step = extent / steps
    error = (torch.from_numpy(packing.unpack(matrix)) - weights).abs()[:, :64].view(19, 2, 32)
    # Half a step; the scale itself is rounded to 11 bits, the minimum too, and the outermost codes are clamped.
    assert (error.amax(-1) <= step * 0.5 + weights.abs().max() * 2**-10).all()


def test_bfloat16_weights_enter_as_they_are() -> None:
    weights = torch.randn(5, 33).bfloat16()
    assert torch.equal(torch.from_numpy(packing.unpack(packing.pack_weight(weights))), weights.float())


def test_bad_input_is_named() -> None:
    with pytest.raises(ConfigError, match="quantization 'int3' is not one of none, int8, int4"):
        packing.packed_format("int3")
    with pytest.raises(ModelFormatError, match=r"\(4, 64\) and GGUF type 2: bytes of the tensor: 100, expected 144"):
        packing.pack_gguf_tensor(np.zeros(100, np.uint8), 2, (4, 64))
    with pytest.raises(ModelFormatError, match="GGUF type 99"):
        packing.pack_gguf_tensor(np.zeros(128, np.uint8), 99, (4, 32))
    with pytest.raises(ModelFormatError, match="weight inf at row 0, column 1 is not finite"):
        packing.pack_weight(torch.tensor([[0.0, torch.inf]]))
    with pytest.raises(ModelFormatError, match="row 0 of a weight matrix has a scale that is not finite"):
        packing.pack_weight(torch.full((1, 32), 1e38), "int8")
    with pytest.raises(ModelFormatError, match="must be"):
        packing.pack_weight(torch.zeros(3))
