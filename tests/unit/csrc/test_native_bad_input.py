"""Every binding answers a wrong dtype, shape, stride or value with a Python error, never a crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

native = pytest.importorskip("outrider._native", reason="the native library is not built")

F32 = np.ones((2, 32), np.float32)
F64 = np.ones((2, 32))
STRIDED = np.ones((2, 64), np.float32)[:, ::2]
ROW = np.linspace(-1, 1, 8, dtype=np.float32)
IDS = np.zeros(1, np.int64)
DISTRIBUTION = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}


def matrix() -> Any:
    return native.pack_float(F32, "q8_0")


def with_value(value: float) -> Any:
    weights = F32.copy()
    weights[1, 3] = value
    return weights


def cache(shape: tuple[int, ...] = (2, 4, 1, 8), dtype: str = "float16") -> Any:
    return np.zeros(shape, dtype=dtype)


def attention(**changed: Any) -> Any:
    arguments: dict[str, Any] = {
        "query": np.ones((1, 2, 8), np.float32),
        "keys": cache(),
        "values": cache(),
        "block_tables": np.zeros((1, 1), np.int64),
        "query_start": [0, 1],
        "seq_lens": [1],
        "positions": np.zeros(1, np.int64),
        "scale": 1.0,
    }
    return native.attention(**arguments | changed)


def index() -> Any:
    made = native.SuffixIndex(100)
    made.extend([1, 2, 3, 1, 2])
    return made


# What is called, the error, and what its message must name (a TypeError of the binding lists the accepted types).
CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "pack_float: dtype": (lambda: native.pack_float(F64, "q8_0"), ValueError, "of 64 bits"),
    "pack_float: dimensions": (lambda: native.pack_float(ROW, "q8_0"), ValueError, "of 1 dimensions"),
    "pack_float: stride": (lambda: native.pack_float(STRIDED, "q8_0"), TypeError, "incompatible"),
    "pack_float: format": (lambda: native.pack_float(F32, "q9"), ValueError, "q9"),
    "pack_float: NaN": (lambda: native.pack_float(with_value(np.nan), "q8_0"), ValueError, "nan"),
    "pack_float: infinity": (lambda: native.pack_float(with_value(np.inf), "q4_1"), ValueError, "inf"),
    "pack_float: order": (lambda: native.pack_float(F32, "f32", np.array([0, 2])), ValueError, "2"),
    "pack_gguf: type": (lambda: native.pack_gguf(np.zeros(34, np.uint8), 999, 1, 32), ValueError, "999"),
    "pack_gguf: bytes": (lambda: native.pack_gguf(np.zeros(33, np.uint8), 8, 1, 32), ValueError, "33, expected 34"),
    "pack_gguf: columns": (lambda: native.pack_gguf(np.zeros(34, np.uint8), 8, 1, 31), ValueError, "31"),
    "pack_gguf: dtype": (lambda: native.pack_gguf(np.zeros(34, np.int8), 8, 1, 32), TypeError, "incompatible"),
    "from_data: bytes": (
        lambda: native.PackedMatrix.from_data("q8_0", 2, 32, np.zeros(8, np.uint8)),
        ValueError,
        "8, expected",
    ),
    "from_data: shape": (
        lambda: native.PackedMatrix.from_data("q8_0", 0, 32, np.zeros(0, np.uint8)),
        ValueError,
        r"\[0, 32\]",
    ),
    "embedding: id": (lambda: native.embedding(matrix(), np.array([2])), ValueError, "id 2 is not below 2"),
    "embedding: negative": (lambda: native.embedding(matrix(), np.array([-1])), ValueError, "id -1"),
    "embedding: dtype": (lambda: native.embedding(matrix(), np.array([0], np.int32)), TypeError, "incompatible"),
    "linear: dtype": (lambda: native.linear(F64, [matrix()]), TypeError, "incompatible"),
    "linear: stride": (lambda: native.linear(STRIDED, [matrix()]), TypeError, "incompatible"),
    "linear: columns": (lambda: native.linear(F32[:, :16].copy(), [matrix()]), ValueError, "16, expected 32"),
    "linear: bias": (lambda: native.linear(F32, [matrix()], [ROW]), ValueError, "8, expected 2"),
    "linear: biases": (lambda: native.linear(F32, [matrix()], []), ValueError, "0, expected 1"),
    "rms_norm: weight": (lambda: native.rms_norm(F32, ROW, 1e-5), ValueError, "8, expected 32"),
    "act_mul: odd": (lambda: native.act_mul(F32[:, :3].copy(), "silu"), ValueError, "not 3"),
    "act_mul: name": (lambda: native.act_mul(F32, "relu"), ValueError, "relu"),
    "rotary: odd": (lambda: native.rotary(np.ones((1, 1, 3), np.float32), F32, F32), ValueError, "head_dim 3"),
    "rotary: table": (lambda: native.rotary(np.ones((2, 1, 8), np.float32), F32, F32), ValueError, "32, expected 4"),
    "argmax: empty": (lambda: native.argmax(np.ones((1, 0), np.float32)), ValueError, "at least one column"),
    "log_sum_exp: empty": (lambda: native.log_sum_exp(np.ones((1, 0), np.float32)), ValueError, "at least one"),
    "attention: dtype": (lambda: attention(keys=cache(dtype="uint16")), ValueError, "keys must be float32 or"),
    "attention: differ": (lambda: attention(values=cache(dtype="float32")), ValueError, "differ in type"),
    "attention: dimensions": (lambda: attention(keys=cache((2, 4, 8))), ValueError, "num_blocks"),
    "attention: head_dim": (lambda: attention(query=np.ones((1, 2, 4), np.float32)), ValueError, "8, expected 4"),
    "attention: heads": (
        lambda: attention(query=np.ones((1, 3, 8), np.float32), keys=cache((2, 4, 2, 8)), values=cache((2, 4, 2, 8))),
        ValueError,
        "3 query heads",
    ),
    "attention: stride": (lambda: attention(keys=cache((2, 4, 1, 16))[..., ::2]), TypeError, "incompatible"),
    "attention: tree": (
        lambda: attention(tree=np.array([[7]]), tree_start=[0]),
        ValueError,
        "tree place 7 of row 0 is not below 1",
    ),
    "attention: tree rows": (
        lambda: attention(tree=np.zeros((2, 1), np.int64), tree_start=[0]),
        ValueError,
        "rows of tree: 2, expected 1",
    ),
    "attention: tree dtype": (
        lambda: attention(tree=np.zeros((1, 1), np.int32), tree_start=[0]),
        TypeError,
        "incompatible",
    ),
    "KVCache: layers": (lambda: native.KVCache([cache()], []), ValueError, "0, expected 1"),
    "KVCache: none": (lambda: native.KVCache([], []), ValueError, "at least one layer"),
    "KVCache: dimensions": (lambda: native.KVCache([cache((2, 4))], [cache((2, 4))]), ValueError, "num_blocks"),
    "KVCache: dtype": (
        lambda: native.KVCache([cache(dtype="float64")], [cache(dtype="float64")]),
        ValueError,
        "of 64 bits",
    ),
    "KVCache: move": (lambda: native.KVCache([cache()], [cache()]).move([8], [0]), ValueError, "slot 8 is not below 8"),
    "distribution: dtype": (
        lambda: native.probabilities(ROW.astype(np.float16), **DISTRIBUTION),
        ValueError,
        "float32 or float64",
    ),
    "distribution: empty": (lambda: native.probabilities(ROW[:0], **DISTRIBUTION), ValueError, "must not be empty"),
    "distribution: shape": (lambda: native.probabilities(F32, **DISTRIBUTION), TypeError, "incompatible"),
    "token_report: token": (lambda: native.token_report(ROW, -1, 2), ValueError, "token id -1"),
    "draw: shape": (lambda: native.draw(F64, 3), TypeError, "incompatible"),
    "SuffixIndex: limit": (lambda: native.SuffixIndex(0), ValueError, "limit=0"),
    "extend: negative": (lambda: index().extend([1, -2]), ValueError, "token id -2"),
    "extend: type": (lambda: index().extend(["a"]), TypeError, "incompatible"),
    "propose: floor": (lambda: index().propose(3, floor=float("nan")), ValueError, "floor=nan"),
    "propose: count": (lambda: index().propose(-1), ValueError, "max_tokens=-1"),
    "propose_after: tail": (lambda: index().propose_after([-3], 2), ValueError, "token id -3"),
    "set_num_threads": (lambda: native.set_num_threads(0), ValueError, "not 0"),
    "set_default_threads": (lambda: native.set_default_threads(0), ValueError, "not 0"),
    "set_variant": (lambda: native.set_variant("sse"), ValueError, "sse"),
    "skip_strings: dtype": (lambda: native.skip_strings(F32, 0, 1), TypeError, "incompatible"),
    "skip_strings: negative": (lambda: native.skip_strings(np.zeros(8, np.uint8), -1, 1), TypeError, "incompatible"),
    "read_all: dtype": (lambda: native.read_all(F32), TypeError, "incompatible"),
}


@pytest.mark.parametrize("case", CASES)
def test_is_an_error_that_names_the_value(case: str) -> None:
    call, error, named = CASES[case]
    with pytest.raises(error, match=named):
        call()


def test_the_same_calls_without_the_fault_pass() -> None:
    """So that no case fails for another reason than its own."""
    assert attention().shape == (1, 2, 8)
    assert attention(tree=np.array([[0]]), tree_start=[0]).shape == (1, 2, 8)
    native.KVCache([cache()], [cache()]).move([7], [0])
    native.probabilities(ROW, **DISTRIBUTION)
    native.token_report(ROW, 0, 2)
    index().propose_after([1], 2)
    assert native.skip_strings(np.array([1, 0, 0, 0, 0, 0, 0, 0, 65], np.uint8), 0, 1) == 9
    assert native.skip_strings(np.array([2, 0, 0, 0, 0, 0, 0, 0, 65], np.uint8), 0, 1) == 10, "past the end"
    assert native.skip_strings(np.zeros(8, np.uint8), 9, 1) == 9, "past the end"
    assert native.linear(F32, [matrix()])[0].shape == (2, 2)
