"""The memory in which K and V lie. Knows shapes, not who owns which block."""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


@dataclass(frozen=True)
class KVShape:
    """The shape of a model's K and V: each ``[num_blocks, block_size, num_kv_heads, head_dim]`` per layer."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    def of_layer(self, num_blocks: int, block_size: int) -> tuple[int, int, int, int]:
        """The shape of K of one layer; V has the same shape."""
        return num_blocks, block_size, self.num_kv_heads, self.head_dim

    def bytes_per_block(self, block_size: int, itemsize: int) -> int:
        """Bytes of one block over all layers, for K and V together, with elements of ``itemsize`` bytes."""
        return 2 * self.num_layers * block_size * self.num_kv_heads * self.head_dim * itemsize

    def allocate(
        self, num_blocks: int, block_size: int, dtype: DTypeLike
    ) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
        """K and V, initialised with zeros, one array per layer each. A page uses no memory until it is written to."""
        shape = self.of_layer(num_blocks, block_size)
        keys, values = ([untouched(shape, dtype) for _ in range(self.num_layers)] for _ in range(2))
        return keys, values


def untouched(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array of zeros. A page of it uses no memory until it is written to.

    The memory is mapped directly from the operating system. NumPy requests huge pages for large arrays, and the first
    byte written to a huge page uses two megabytes.
    """
    kind = np.dtype(dtype)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    memory = mmap.mmap(-1, math.prod(shape) * kind.itemsize, **private)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=kind).reshape(shape)
