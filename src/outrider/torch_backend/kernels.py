"""torch's own products of a weight matrix with few rows, for ``outrider bench kernels`` to measure beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear

INT4_GROUP = 32


@dataclass(frozen=True)
class TorchKernel:
    """``run(which of the matrices, rows)`` multiplies; a matrix is ``nbytes`` long, scales included."""

    nbytes: int
    run: Callable[[int, int], object]
    matrices: int


@torch.inference_mode()
def torch_kernels(
    size: int, threads: int, pieces: Callable[[int], Sequence[NDArray[np.uint8]]], most_rows: int
) -> Iterator[tuple[str, TorchKernel | str]]:
    """Name of each kernel, and the kernel or why this torch does not have it.

    Matrices are [size, size], in the memory of ``pieces(nbytes)``: parts of that length, none overlapping.
    """
    torch.set_num_threads(threads)
    x = torch.randn(most_rows, size, generator=torch.Generator().manual_seed(1))

    def tensors(nbytes: int, dtype: torch.dtype, *shape: int) -> list[Tensor]:
        return [torch.from_numpy(piece).view(dtype).view(*shape) for piece in pieces(nbytes)]

    def floats(dtype: torch.dtype) -> TorchKernel:
        nbytes = dtype.itemsize * size * size
        matrices, rows_of = tensors(nbytes, dtype, size, size), x.to(dtype)
        return TorchKernel(nbytes, lambda which, rows: linear(rows_of[:rows], matrices[which]), len(matrices))

    def int8() -> TorchKernel:
        matrices, rows_of = tensors(size * size, torch.int8, size, size), x.bfloat16()
        scales = torch.full((size,), 0.01, dtype=torch.bfloat16)
        product: Any = torch._weight_int8pack_mm
        return TorchKernel(
            size * size + 2 * size,
            lambda which, rows: product(rows_of[:rows], matrices[which], scales),
            len(matrices),
        )

    def int4() -> TorchKernel:
        matrices, rows_of = tensors(size * size // 2, torch.uint8, size, size // 2), x.bfloat16()
        # Scales and zeros of a matrix of their own for each, since they too are read from memory.
        scales = [torch.full((size // INT4_GROUP, size, 2), 0.01, dtype=torch.bfloat16) for _ in matrices]
        product: Any = torch.ops.aten._weight_int4pack_mm_for_cpu
        return TorchKernel(
            size * size // 2 + 4 * size * size // INT4_GROUP,
            lambda which, rows: product(rows_of[:rows], matrices[which], INT4_GROUP, scales[which]),
            len(matrices),
        )

    makers: dict[str, Callable[[], TorchKernel]] = {
        "torch linear f32": lambda: floats(torch.float32),
        "torch linear bf16": lambda: floats(torch.bfloat16),
        "torch int8pack": int8,
        "torch int4pack": int4,
    }
    for name, make in makers.items():
        try:
            kernel = make()
            kernel.run(0, 1)
        except (AttributeError, RuntimeError, NotImplementedError) as error:
            yield name, str(error).splitlines()[0]
        else:
            yield name, kernel
