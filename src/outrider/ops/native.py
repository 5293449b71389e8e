"""The native kernel library: whether it is here, which variant runs, and its row-wise primitives on torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.errors import ConfigError
from outrider.machine import usable_processors
from outrider.ops import reference


@cache
def _loaded() -> tuple[Any, str]:
    """(library or None, why it is not there)."""
    try:
        from outrider import _native
    except ImportError as error:
        return (
            None,
            f"the native library is not built ({error}); install Outrider with pip on a machine with a compiler",
        )
    _native.set_default_threads(usable_processors())
    return _native, ""


def available() -> bool:
    """True if the native library can be used."""
    return _loaded()[0] is not None


def library() -> Any:
    """The extension module ``outrider._native``. Raises ``ConfigError`` where it was not built."""
    module, problem = _loaded()
    if module is None:
        raise ConfigError(f"{problem}; or use backend='reference'")
    return module


def describe() -> str:
    """Which kernels run on this processor, or why none do."""
    module, problem = _loaded()
    if module is None:
        return problem
    return f"{module.variant()} kernels, up to {module.num_threads()} threads, chosen by measurement"


def as_array(logits: Tensor) -> NDArray[np.floating[Any]]:
    """``logits`` as NumPy reads them: float32 or float64 as they are, without a copy on a CPU; others as float32."""
    wide = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    array: NDArray[np.floating[Any]] = wide.cpu().numpy()
    return array


def max_and_argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Largest value and its id for each row of float32 ``logits`` [n, vocab]; among equals the lowest id.

    A row that holds a NaN gives a NaN as its largest value. Falls back to the reference off the CPU.
    """
    module, _ = _loaded()
    if module is None or logits.device.type != "cpu" or logits.dtype != torch.float32:
        return reference.max_and_argmax(logits)
    ids, largest = module.argmax(logits.contiguous())
    return torch.from_numpy(largest), torch.tensor(ids, dtype=torch.int64)


def greedy_ids(groups: Sequence[Tensor]) -> list[list[int]]:
    """For each of ``groups``, float32 logits [n, vocab], what ``max_and_argmax`` gives for its rows, in one go.

    A group with a row whose largest value is not finite has an empty list instead. Falls back to the reference off the
    CPU.
    """
    module, _ = _loaded()
    if module is not None and all(rows.device.type == "cpu" and rows.dtype == torch.float32 for rows in groups):
        found: list[list[int]] = module.greedy_ids([rows.contiguous().numpy() for rows in groups])
        return found
    largest, ids = reference.max_and_argmax(torch.cat(list(groups)))
    sound, chosen = largest.isfinite().tolist(), ids.tolist()
    split, first = [], 0
    for rows in groups:
        upto = first + len(rows)
        split.append(chosen[first:upto] if all(sound[first:upto]) else [])
        first = upto
    return split
