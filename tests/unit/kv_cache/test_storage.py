"""The memory of K and V: zeroed, writable, and of no size until it is written to."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from outrider.kv_cache.storage import KVShape, untouched

PAGE = 4096


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_arrays_of_each_layer() -> None:
    shape = KVShape(num_layers=3, num_kv_heads=2, head_dim=8)
    keys, values = shape.allocate(num_blocks=5, block_size=4, dtype="float16")
    assert len(keys) == len(values) == 3
    for array in (*keys, *values):
        assert array.shape == (5, 4, 2, 8)
        assert array.dtype == np.float16
        assert not array.any()
        array[:] = 1.0
    assert shape.bytes_per_block(block_size=4, itemsize=2) == sum(array[0].nbytes for array in (*keys, *values))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident size from /proc")
def test_memory_is_taken_only_where_it_is_written() -> None:
    before = resident_bytes()
    memory = untouched((1 << 10, 1 << 20), np.uint8)
    assert resident_bytes() - before < 1 << 20, "a gigabyte that nobody wrote to"
    memory[::8, 0] = 1  # a page in each eighth megabyte
    grown = resident_bytes() - before
    assert grown < 4 << 20, f"128 pages took {grown} bytes"
