"""The native row-wise kernels against float64, in every variant that this processor runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

native = pytest.importorskip("outrider._native", reason="the native library is not built")

SIZES = [1, 5, 8, 16, 33, 100]


@pytest.mark.parametrize("n", SIZES)
def test_rms_norm(n: int, variant: str) -> None:
    rng = np.random.default_rng(n)
    x, weight = rng.standard_normal((4, n)).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(native.rms_norm(x, weight, 1e-5), expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
def test_activation_times_up(act: str, n: int, variant: str) -> None:
    rng = np.random.default_rng(n)
    gate_up = (rng.standard_normal((3, 2 * n)) * 6).astype(np.float32)
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    if act == "silu":
        expected = gate / (1 + np.exp(-gate)) * up
    else:
        expected = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
    np.testing.assert_allclose(native.act_mul(gate_up, act), expected, rtol=3e-6, atol=2e-6)


def test_activations_far_out(variant: str) -> None:
    gate = np.array([[-1e4, -200.0, -100.0, 100.0, 200.0, 1e4, 0.0]], np.float32)
    both = np.concatenate([gate, np.ones_like(gate)], axis=1)
    expected = np.maximum(gate, 0.0)
    np.testing.assert_allclose(native.act_mul(both, "silu"), expected, atol=1e-30)
    np.testing.assert_allclose(native.act_mul(both, "gelu_tanh"), expected, atol=1e-30)


@pytest.mark.parametrize("d", [2, 8, 16, 20, 64, 128])
def test_rotary(d: int, variant: str) -> None:
    rng = np.random.default_rng(d)
    x = rng.standard_normal((3, 2, d)).astype(np.float32)
    angle = rng.uniform(0, 100, (3, d // 2))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    expected = np.concatenate([a * cos[:, None] - b * sin[:, None], b * cos[:, None] + a * sin[:, None]], -1)
    np.testing.assert_allclose(native.rotary(x, cos, sin), expected, rtol=1e-6, atol=1e-6)


@given(st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_argmax_takes_the_lowest_of_equals(n: int, seed: int) -> None:
    x = np.random.default_rng(seed).integers(-3, 3, (4, n)).astype(np.float32)
    ids, values = native.argmax(x)
    assert ids == list(x.argmax(-1))  # NumPy's takes the first too
    assert np.array_equal(values, x.max(-1))


def test_argmax_of_odd_rows(variant: str) -> None:
    x = np.full((5, 37), -np.inf, np.float32)
    x[1, 30] = np.nan
    x[2, 36] = np.inf
    x[3, 7] = -1.0
    x[4] = -np.inf
    x[4, 11:13] = np.inf
    ids, values = native.argmax(x)
    assert ids == [0, 30, 36, 7, 11]
    assert np.isnan(values[1])
    assert np.array_equal(values[[0, 2, 3, 4]], np.array([-np.inf, np.inf, -1.0, np.inf], np.float32))


@pytest.mark.parametrize("n", [1, 7, 64, 1001])
def test_log_sum_exp(n: int, variant: str) -> None:
    x = (np.random.default_rng(n).standard_normal((3, n)) * 20).astype(np.float32)
    wide = x.astype(np.float64)
    top = wide.max(-1, keepdims=True)
    expected = top[:, 0] + np.log(np.exp(wide - top).sum(-1))
    np.testing.assert_allclose(native.log_sum_exp(x), expected, rtol=1e-6, atol=1e-5)


def test_log_sum_exp_of_infinities(variant: str) -> None:
    x = np.array([[-np.inf, -np.inf], [np.inf, 0.0], [-np.inf, 2.0], [np.nan, 0.0]], np.float32)
    with_nan = native.log_sum_exp(x)
    assert np.isnan(with_nan[3])
    assert np.array_equal(with_nan[:3], np.array([-np.inf, np.inf, 2.0], np.float32))


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="norm weight: 3, expected 4"):
        native.rms_norm(np.zeros((1, 4), np.float32), np.zeros(3, np.float32), 1e-5)
    with pytest.raises(ValueError, match="no activation 'relu': silu or gelu_tanh"):
        native.act_mul(np.zeros((1, 4), np.float32), "relu")
    with pytest.raises(ValueError, match="even number of columns, not 3"):
        native.act_mul(np.zeros((1, 3), np.float32), "silu")
    with pytest.raises(ValueError, match="threads must be at least 1, not 0"):
        native.set_num_threads(0)
