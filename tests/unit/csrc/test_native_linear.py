"""The native linear kernels, in every variant that this processor runs: exact arithmetic, error bound, equal bits."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

native = pytest.importorskip("outrider._native", reason="the native library is not built")

Floats = NDArray[np.float32]
VARIANTS: list[str] = native.available_variants()
GGUF_TYPES = {"q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q4_k": 12, "q5_k": 13, "q6_k": 14}
HALVES = {"q6_k": (208,), "q8_0": (0,), "q4_0": (0,), "q5_0": (0,)}  # places of fp16 values in a block; else 0 and 2


def random_blocks(name: str, rows: int, cols: int, seed: int) -> NDArray[np.uint8]:
    """Rows of valid GGUF blocks: any codes and sub-scales, small finite scales of both signs."""
    rng = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(GGUF_TYPES[name])]
    raw = rng.integers(0, 256, (rows, cols // block, size), dtype=np.uint8)
    for place in HALVES.get(name, (0, 2)):
        scale = (rng.standard_normal((rows, cols // block, 1)) * 0.01).astype(np.float16)
        raw[:, :, place : place + 2] = scale.view(np.uint8)
    return raw.reshape(rows, -1)


def packed(name: str, rows: int, cols: int, seed: int = 0) -> tuple[Any, Floats]:
    """A packed matrix and the gguf package's own dequantized weights."""
    raw = random_blocks(name, rows, cols, seed)
    weights = dequantize(raw, gguf.GGMLQuantizationType(GGUF_TYPES[name]))
    return native.pack_gguf(raw.reshape(-1), GGUF_TYPES[name], rows, cols), weights.astype(np.float32)


def fused(a: Floats, b: Floats | np.float32, c: Floats | np.float32) -> Floats:
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


def separate(a: Floats, b: Floats | np.float32, c: Floats | np.float32) -> Floats:
    return a * b + c


def quantized(x: Floats, variant: str) -> tuple[Floats, Floats]:
    """Activation codes [rows, groups, 32] and scales [rows, groups], as the kernels compute them."""
    multiply_add = separate if variant == "portable" else fused
    groups = x.reshape(len(x), -1, 32)
    unit = np.float32(127) / np.abs(groups).max(-1)
    scaled = groups * unit[..., None]
    gains, ratios, steps = [], [], []
    for code in np.array([127, 126, 125, 124], np.float32):
        step = code / np.float32(127)
        zero = np.float32(0)
        # [rows, groups, 4, 8]: each lane adds its four products in order, and then the lanes are added.
        values, q = (a.reshape(*groups.shape[:2], 4, 8) for a in (scaled, np.rint(multiply_add(scaled, step, zero))))
        xq, qq = np.zeros_like(values[:, :, 0]), np.zeros_like(values[:, :, 0])
        for i in range(4):
            xq = multiply_add(values[:, :, i], q[:, :, i], xq)
            qq = multiply_add(q[:, :, i], q[:, :, i], qq)
        ratios.append(over_lanes(xq) / over_lanes(qq))
        gains.append(over_lanes(xq) * ratios[-1])
        steps.append(step)
    best = np.argmax(gains, 0)
    codes = np.rint(groups * (unit * np.array(steps)[best])[..., None])
    return codes, np.take_along_axis(np.array(ratios), best[None], 0)[0] / unit


def over_lanes(v: Floats) -> Floats:
    """Sums of the 8 lanes, the last axis, in float32."""
    pairs = np.stack([v[..., :2] + v[..., 2:4], v[..., 4:6] + v[..., 6:]])
    low, high = pairs[..., 0] + pairs[..., 1]
    total: Floats = low + high
    return total


@pytest.mark.parametrize("name", GGUF_TYPES)
def test_unpacked_weights_are_the_files_own(name: str) -> None:
    matrix, weights = packed(name, 37, 512)
    assert np.array_equal(native.embedding(matrix, np.arange(37)), weights)


@pytest.mark.parametrize("name", GGUF_TYPES)
def test_error_is_that_of_rounding_activations(name: str, variant: str) -> None:
    """|y - exact| is at most what rounding took from the activations times the weights' magnitudes, in float32."""
    matrix, weights = packed(name, 37, 512)
    x = np.random.default_rng(1).standard_normal((21, 512)).astype(np.float32)
    (y,) = native.linear(x, [matrix])
    exact = x.astype(np.float64) @ weights.T.astype(np.float64)
    magnitudes = np.abs(weights.astype(np.float64)).reshape(37, -1, 32).sum(-1)  # [rows, groups]
    codes, scale = quantized(x, variant)
    off = np.abs(x.reshape(codes.shape) - codes * scale[..., None]).max(-1).astype(np.float64)  # [rows, groups]
    bound = off @ magnitudes.T
    # Codes and minimum cancel in float32: allow for the sizes of the terms, not of their difference.
    rounding = 1e-5 * (np.abs(x) @ np.abs(weights).T + np.abs(x).sum(-1, keepdims=True) * np.abs(weights).max())
    assert (np.abs(y - exact) <= 1.01 * bound + rounding).all()
    assert np.abs(y - exact).max() > 0


def test_rounding_leaves_no_more_than_to_127_does(variant: str) -> None:
    """Through weights of one column each: what comes back is the rounded activations themselves."""
    x = np.random.default_rng(5).standard_normal((300, 32)).astype(np.float32)
    x[:40, 7:] = 0.0
    (rounded,) = native.linear(x, [native.pack_float(127 * np.eye(32, dtype=np.float32), "q8_0")])
    rounded = rounded / 127
    scale = np.abs(x).max(-1, keepdims=True) / 127
    left = ((x - rounded) ** 2).sum(-1)
    plain = ((x - np.rint(x / scale) * scale) ** 2).sum(-1)
    assert (left <= plain * (1 + 1e-3) + 1e-9).all()
    assert left.sum() < 0.92 * plain.sum()


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1"])
def test_arithmetic_is_exactly_as_documented(name: str, variant: str) -> None:
    """Integer sums within a group are exact and groups are added in float32 in order: equal to an emulation."""
    rows, cols, n = 19, 160, 5
    raw = random_blocks(name, rows, cols, seed=3).reshape(rows, cols // 32, -1)
    d = raw[:, :, :2].copy().view(np.float16).astype(np.float32)[..., 0]  # [rows, groups]
    minimum = np.zeros_like(d)
    if name == "q8_0":
        weight_codes = raw[:, :, 2:].view(np.int8).astype(np.int64)
    else:
        if name == "q4_1":
            minimum = raw[:, :, 2:4].copy().view(np.float16).astype(np.float32)[..., 0]
        nibbles = raw[:, :, -16:]
        weight_codes = np.concatenate([nibbles & 15, nibbles >> 4], -1).astype(np.int64) - (8 if name == "q4_0" else 0)
    x = np.random.default_rng(4).standard_normal((n, cols)).astype(np.float32)
    codes, scale = quantized(x, variant)
    sums = np.einsum("rgi,ngi->nrg", weight_codes, codes.astype(np.int64)).astype(np.float32)
    total = np.zeros((n, rows), np.float32)
    step = separate if variant == "portable" else fused
    for g in range(cols // 32):
        total = step(sums[:, :, g], d[None, :, g] * scale[:, None, g], total)
        if name == "q4_1":
            total = step(minimum[None, :, g], (scale[:, g] * codes[:, g].sum(-1, dtype=np.float32))[:, None], total)
    matrix = native.pack_gguf(raw.reshape(-1), GGUF_TYPES[name], rows, cols)
    assert np.array_equal(native.linear(x, [matrix])[0], total)


def matrix_of(name: str, rows: int, cols: int) -> Any:
    if name in GGUF_TYPES:
        return packed(name, rows, cols)[0]
    weights = np.random.default_rng(7).standard_normal((rows, cols)).astype(np.float32)
    return native.pack_float(weights, name)


@pytest.mark.parametrize("name", ["f32", "bf16", *GGUF_TYPES])
def test_a_row_has_the_same_bits_in_any_company(name: str, variant: str) -> None:
    matrix = matrix_of(name, 40, 512)
    x = np.random.default_rng(2).standard_normal((70, 512)).astype(np.float32)
    alone = np.concatenate([native.linear(x[i : i + 1], [matrix])[0] for i in range(len(x))])
    for count in [*range(1, 34), 70]:
        for first in (0, 3):
            if first + count <= len(x):
                (y,) = native.linear(x[first : first + count], [matrix])
                assert np.array_equal(y, alone[first : first + count]), f"{count} rows from {first}"
    for threads in (1, 2, 3):
        native.set_num_threads(threads)
        assert np.array_equal(native.linear(x, [matrix])[0], alone), f"{threads} threads"


@pytest.mark.skipif("avxvnni" not in VARIANTS, reason="this processor has no AVX-VNNI (make emulate runs it anywhere)")
@pytest.mark.parametrize("name", ["f32", "bf16", *GGUF_TYPES])
def test_avxvnni_has_the_bits_of_avx2(name: str) -> None:
    matrix = matrix_of(name, 40, 512)
    x = np.random.default_rng(3).standard_normal((9, 512)).astype(np.float32)
    results = []
    for other in ("avx2", "avxvnni"):
        native.set_variant(other)
        results.append(native.linear(x, [matrix])[0])
    native.set_variant("auto")
    assert np.array_equal(*results)


def test_several_matrices_share_their_input(variant: str) -> None:
    """Of different formats and sizes, with and without bias: as each alone."""
    x = np.random.default_rng(5).standard_normal((9, 512)).astype(np.float32)
    matrices = [matrix_of("q4_k", 50, 512), matrix_of("q6_k", 7, 512), matrix_of("bf16", 16, 512)]
    bias = np.arange(50, dtype=np.float32)
    together = native.linear(x, matrices, [bias, None, None])
    alone = [native.linear(x, [m])[0] for m in matrices]
    assert np.array_equal(together[0], alone[0] + bias)
    assert np.array_equal(together[1], alone[1])
    assert np.array_equal(together[2], alone[2])


@settings(max_examples=60)
@given(st.sampled_from(["f32", "bf16", "q8_0", "q4_1"]), st.integers(0, 70), st.integers(1, 40), st.integers(1, 100))
def test_any_shape(name: str, rows: int, outs: int, ins: int) -> None:
    """Odd sizes, one group, no rows: float weights packed in each format agree with their own unpacked values."""
    rng = np.random.default_rng(rows * 10000 + outs * 100 + ins)
    weights = rng.standard_normal((outs, ins)).astype(np.float32)
    matrix = native.pack_float(weights, name)
    kept = native.embedding(matrix, np.arange(outs))
    tolerance = {"f32": 0.0, "bf16": 2**-8, "q8_0": 0.02, "q4_1": 0.3}[name]
    assert np.abs(kept - weights).max() <= tolerance * max(1.0, np.abs(weights).max())
    x = rng.standard_normal((rows, ins)).astype(np.float32)
    (y,) = native.linear(x, [matrix])
    assert y.shape == (rows, outs)
    exact = x.astype(np.float64) @ kept.T.astype(np.float64)
    slack = 1e-4 + (0.0 if name in ("f32", "bf16") else 0.55 / 124 * np.abs(x).max(initial=0) * np.abs(kept).sum(-1))
    assert (np.abs(y - exact) <= slack).all()


def test_rows_take_the_order_that_is_asked_for() -> None:
    raw = random_blocks("q4_0", 20, 64, seed=1)
    order = np.random.default_rng(0).permutation(20)
    plain = native.embedding(native.pack_gguf(raw.reshape(-1), 2, 20, 64), np.arange(20))
    moved = native.embedding(native.pack_gguf(raw.reshape(-1), 2, 20, 64, order), np.arange(20))
    assert np.array_equal(moved, plain[order])


@pytest.mark.parametrize("name", ["bf16", "q4_k", "q8_0"])
def test_a_nan_row_harms_only_itself(name: str, variant: str) -> None:
    matrix = matrix_of(name, 24, 256)
    x = np.random.default_rng(6).standard_normal((5, 256)).astype(np.float32)
    (clean,) = native.linear(x, [matrix])
    x[2, 100] = np.nan
    (y,) = native.linear(x, [matrix])
    assert np.isnan(y[2]).all()
    assert np.array_equal(np.delete(y, 2, 0), np.delete(clean, 2, 0))


def test_packed_bytes_make_the_same_matrix_again() -> None:
    matrix = matrix_of("q5_k", 33, 256)
    again = native.PackedMatrix.from_data("q5_k", 33, 256, np.array(matrix.data))
    x = np.random.default_rng(8).standard_normal((3, 256)).astype(np.float32)
    assert np.array_equal(native.linear(x, [matrix])[0], native.linear(x, [again])[0])
    with pytest.raises(ValueError, match="bytes of the packed matrix: 10, expected"):
        native.PackedMatrix.from_data("q5_k", 33, 256, np.zeros(10, np.uint8))


def test_bad_input_is_named() -> None:
    matrix = matrix_of("q8_0", 8, 64)
    with pytest.raises(ValueError, match="columns of x: 32, expected 64"):
        native.linear(np.zeros((1, 32), np.float32), [matrix])
    with pytest.raises(TypeError):
        native.linear(np.zeros((1, 64)), [matrix])  # float64
    with pytest.raises(TypeError):
        native.linear(np.zeros((64, 2), np.float32).T, [matrix])  # strided
    with pytest.raises(ValueError, match="id 8 is not below 8"):
        native.embedding(matrix, np.array([8]))
    with pytest.raises(ValueError, match=r"weight nan at row 1, column 3"):
        bad = np.zeros((2, 64), np.float32)
        bad[1, 3] = np.nan
        native.pack_float(bad, "q4_1")
    with pytest.raises(ValueError, match="row 0 of a weight matrix has a scale that is not finite"):
        native.pack_gguf(np.full(34, 0x7F, np.uint8), 8, 1, 32)
    with pytest.raises(ValueError, match="columns come in 256"):
        native.pack_gguf(np.zeros(144, np.uint8), 12, 1, 128)
    with pytest.raises(ValueError, match="kernel variant 'sse9' is not available"):
        native.set_variant("sse9")
