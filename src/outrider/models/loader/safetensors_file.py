"""The safetensors container: names, types and shapes of tensors, and views of them in the mapped file.

The file is untrusted: whatever is wrong with it becomes a ``ModelFormatError``. Knows nothing about models.
Format: 8 bytes length, a JSON header, then the tensors (https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelFormatError

READ_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Stored types that are read, and the NumPy type of each; of bfloat16 NumPy has only the bits."""


@dataclass(frozen=True)
class StoredTensor:
    """``kind`` as the header names it, ``shape`` rows first, bytes [begin, end) of the file."""

    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """An open file; ``tensors`` maps name -> ``StoredTensor``.

    Raises ``ModelFormatError`` for a file that is no safetensors file, is damaged, or ends too early, saying how many
    bytes are missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(0)
                self.tensors = _read_header(path, size, file.read(8), file.read)
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelFormatError(f"{path}: cannot be read: {error.strerror or error}") from None

    def view(self, name: str) -> NDArray[Any]:
        """A tensor as it is stored, not copied: float32, float16, or uint16 for bfloat16.

        Raises ``ModelFormatError`` for any other type.
        """
        stored = self.tensors[name]
        if stored.kind not in READ_TYPES:
            raise ModelFormatError(
                f"{self.path}: tensor {name!r} {list(stored.shape)} is stored as {stored.kind}; only "
                f"{', '.join(READ_TYPES)} are read, so use the unquantized checkpoint or a .gguf file"
            )
        count = math.prod(stored.shape)
        return np.frombuffer(self._data, READ_TYPES[stored.kind], count, stored.begin).reshape(stored.shape)


def _read_header(path: Path, size: int, prefix: bytes, read: Any) -> dict[str, StoredTensor]:
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
    if not 2 <= length <= size - 8:
        raise ModelFormatError(f"{path}: this is no safetensors file, or it is truncated ({size} bytes)")
    first = 8 + length
    try:
        entries = json.loads(read(length))
        entries.pop("__metadata__", None)
        table = {}
        for name, entry in entries.items():
            begin, end = map(int, entry["data_offsets"])
            table[name] = StoredTensor(str(entry["dtype"]), tuple(map(int, entry["shape"])), first + begin, first + end)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ModelFormatError(f"{path}: the safetensors header is damaged ({error}); fetch the file again") from None
    missing = max((stored.end for stored in table.values()), default=0) - size
    if missing > 0:
        raise ModelFormatError(f"{path}: the file is truncated: {missing} of {size + missing} bytes are missing")
    for name, stored in table.items():
        itemsize = np.dtype(READ_TYPES.get(stored.kind, "u1")).itemsize
        wanted = math.prod(stored.shape) * itemsize if stored.kind in READ_TYPES else stored.end - stored.begin
        if min(stored.shape, default=0) < 0 or stored.begin < first or stored.end - stored.begin != wanted:
            raise ModelFormatError(
                f"{path}: the safetensors header is damaged (tensor {name!r} {list(stored.shape)} of {stored.kind} "
                f"lies at bytes {stored.begin} to {stored.end}); fetch the file again"
            )
    return table
