"""The GGUF container: metadata, tensor table and raw tensor bytes, memory-mapped, with every offset checked.

The file is untrusted: whatever is wrong with it becomes a ``ModelFormatError``. Strings of long arrays are decoded
only when asked for, so a start that does not need the vocabulary does not pay for it. Knows nothing about models.
Format: the GGUF specification, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider import native
from outrider.errors import ModelFormatError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MOST_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Value type -> struct code."""

TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""Tensor type of ggml -> name, values in a block, bytes of a block. As in the ``gguf`` package, which a test compares
with: reading it from there would import the package at every start."""


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: ``shape`` rows first, ``type_id`` of ggml, bytes [offset, offset + size) of the file."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    size: int

    @property
    def type_name(self) -> str:
        """What ggml calls the type."""
        return TENSOR_TYPES[self.type_id][0]


@dataclass(frozen=True)
class StringArray:
    """An array of strings not decoded yet: ``count`` of them from byte ``start``."""

    start: int
    count: int


class GGUFFile:
    """An open GGUF file.

    ``metadata`` maps key -> number, bool, str, list of numbers, or ``StringArray`` (see ``strings``).
    ``tensors`` maps name -> ``TensorInfo``. Raises ``ModelFormatError`` for a file that is no GGUF, is damaged,
    or ends too early, saying how many bytes are missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._size = file.seek(0, 2)
                if self._size:
                    self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelFormatError(f"{path}: cannot be read: {error.strerror or error}") from None
        self._at = 0
        self._tokenizer_spans: list[tuple[int, int]] = []
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._read_header()

    def strings(self, key: str) -> list[str]:
        """The strings of the array ``key``; an empty list if there is none of that name."""
        array = self.metadata.get(key)
        if not isinstance(array, StringArray):
            return []
        self._at = array.start
        return [self._string(key) for _ in range(array.count)]

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Bytes of a tensor [rows, bytes per row], one row for a vector; a read-only view of the file."""
        info = self.tensors[name]
        rows = math.prod(info.shape[:-1])
        return np.frombuffer(self._data, np.uint8, count=info.size, offset=info.offset).reshape(rows, -1)

    def tokenizer_digest(self) -> str:
        """SHA-256 over the bytes of all ``tokenizer.*`` metadata: equal digests mean equal tokenizers."""
        digest = hashlib.sha256()
        for start, end in self._tokenizer_spans:
            digest.update(self._data[start:end])
        return digest.hexdigest()

    def _bad(self, problem: str) -> ModelFormatError:
        return ModelFormatError(f"{self.path}: {problem}")

    def _take(self, count: int, what: str) -> int:
        """Move past ``count`` bytes and return where they start."""
        start = self._at
        if count > self._size - start:
            missing = count - (self._size - start)
            raise self._bad(
                f"the file ends inside its header, at {what}: at least {missing} bytes are missing; fetch it again"
            )
        self._at = start + count
        return start

    def _number(self, code: str, what: str) -> Any:
        layout = "<" + code
        return struct.unpack_from(layout, self._data, self._take(struct.calcsize(layout), what))[0]

    def _string(self, what: str) -> str:
        length = self._number("Q", what)
        start = self._take(length, what)
        try:
            return self._data[start : self._at].decode()
        except UnicodeDecodeError:
            raise self._bad(f"{what} is not UTF-8; the file is damaged, fetch it again") from None

    def _skip_strings(self, count: int, what: str) -> None:
        if native.available():
            end = native.library.skip_strings(np.frombuffer(self._data, np.uint8), self._at, count)
            if end <= self._size:
                self._at = end
                return
        # Without the library, or to say how many bytes are missing.
        at, last, length_at = self._at, self._size - 8, struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at > last:
                break
            at += 8 + length_at(self._data, at)[0]
        else:
            self._take(at - self._at, what)
            return
        self._take(at + 8 - self._at, what)

    def _read_header(self) -> None:
        if self._size == 0:
            raise self._bad("the file is empty (0 bytes); fetch it again")
        magic = self._data[: len(_MAGIC)]
        if magic != _MAGIC:
            raise self._bad(f"this is no GGUF file: it starts with {magic!r}, not {_MAGIC!r}")
        self._at = len(_MAGIC)
        version = self._number("I", "the version")
        if version not in _VERSIONS:
            hint = " (big-endian files are not supported)" if version & 0xFFFF == 0 else ""
            raise self._bad(f"GGUF version {version} is not supported{hint}; supported are: 2, 3")
        num_tensors, num_keys = self._number("Q", "the counts"), self._number("Q", "the counts")
        for _ in range(num_keys):
            self._read_key()
        entries = [self._read_tensor() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._bad(f"general.alignment={alignment!r}; it must be a power of two")
        base = -(-self._at // alignment) * alignment
        for info in entries:
            if info.name in self.tensors:
                raise self._bad(f"tensor {info.name!r} is listed twice; the file is damaged")
            self.tensors[info.name] = TensorInfo(info.name, info.shape, info.type_id, base + info.offset, info.size)
        end = max((info.offset + info.size for info in self.tensors.values()), default=self._at)
        if end > self._size:
            raise self._bad(
                f"the file is truncated: it has {self._size} bytes, {end - self._size} are missing; fetch it again"
            )

    def _read_key(self) -> None:
        start = self._at
        key = self._string("a metadata key")
        if key in self.metadata:
            raise self._bad(f"metadata key {key!r} is given twice; the file is damaged")
        self.metadata[key] = self._value(self._number("I", key), key)
        if key.startswith("tokenizer."):
            self._tokenizer_spans.append((start, self._at))

    def _value(self, type_id: int, key: str) -> Any:
        if type_id == _STRING:
            return self._string(key)
        if type_id in _SCALARS:
            return self._number(_SCALARS[type_id], key)
        if type_id != _ARRAY:
            raise self._bad(f"metadata key {key!r} has the unknown value type {type_id}; the file is damaged")
        item, count = self._number("I", key), self._number("Q", key)
        if item == _STRING:
            array = StringArray(self._at, count)
            self._skip_strings(count, key)
            return array
        if item not in _SCALARS:
            raise self._bad(f"metadata key {key!r} is an array of the unsupported value type {item}")
        kind = np.dtype("<" + _SCALARS[item] if _SCALARS[item] != "?" else "?")
        start = self._take(count * kind.itemsize, key)
        return np.frombuffer(self._data, kind, count=count, offset=start).tolist()

    def _read_tensor(self) -> TensorInfo:
        name = self._string("a tensor's name")
        num_dimensions = self._number("I", name)
        if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
            raise self._bad(f"tensor {name!r} has {num_dimensions} dimensions; the file is damaged")
        shape = tuple(self._number("Q", name) for _ in range(num_dimensions))[::-1]
        type_id, offset = self._number("I", name), self._number("Q", name)
        if type_id not in TENSOR_TYPES:
            raise self._bad(f"tensor {name!r} has the unknown quantization type {type_id}; it is not supported")
        _, block, block_bytes = TENSOR_TYPES[type_id]
        if 0 in shape or shape[-1] % block:
            raise self._bad(f"tensor {name!r} has shape {list(shape)}; its rows must be whole blocks of {block} values")
        return TensorInfo(name, shape, type_id, offset, math.prod(shape) // block * block_bytes)
