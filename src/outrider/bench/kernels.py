"""Times products of a weight matrix with few rows: the native formats, and torch's own kernels beside them.

All kernels read their weights from one buffer of random bytes, larger than the last-level cache several times over,
so that weights come from memory as they do in a model. The bytes are ordinary numbers in every format.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from outrider import native
from outrider.bench.paired import Ratio, paired_ratio
from outrider.errors import ConfigError
from outrider.extras import has_torch

ROWS = tuple(range(1, 17))
CACHE_TIMES = 4
"""How many times the last-level cache the buffer is."""
DEFAULT_CACHE_BYTES = 32 << 20
SAMPLE_SECONDS = 0.02
SETTLE_SECONDS = 0.03
"""Wait between kernels: torch's threads spin on for some milliseconds after their work."""
ALIGNMENT = 64

Product = Callable[[int, int], object]
"""Called with (which of the matrices, rows)."""


@dataclass
class Kernel:
    """One kernel over one weight format.

    ``seconds`` by rows, then by round; ``read_rates`` by round: bytes per second of plain reading just before.
    """

    name: str
    nbytes: int
    weights: int
    run: Product
    matrices: int
    seconds: dict[int, dict[Hashable, float]] = field(default_factory=dict)
    read_rates: dict[Hashable, float] = field(default_factory=dict)

    @property
    def bits_per_weight(self) -> float:
        """Bits that are read per weight, scales included."""
        return 8 * self.nbytes / self.weights

    def ms(self, rows: int) -> float:
        """Median milliseconds of a product with ``rows`` rows."""
        return 1000 * statistics.median(self.seconds[rows].values())

    def gb_s(self, rows: int) -> float:
        """Weight bytes per second, in 10^9."""
        return self.nbytes / self.ms(rows) / 1e6

    def share_of_read(self, rows: int) -> Ratio | None:
        """Weight bytes per second over those of plain reading, in the same round."""
        rates = {turn: self.nbytes / seconds for turn, seconds in self.seconds[rows].items()}
        return paired_ratio(rates, self.read_rates)

    def ratio(self, rows: int) -> Ratio:
        """t(rows) / t(1), in the same round. Raises ``ValueError`` before anything was measured."""
        found = paired_ratio(self.seconds.get(rows, {}), self.seconds.get(1, {}))
        if found is None:
            raise ValueError(f"{self.name} has no samples at {rows} rows")
        return found


@dataclass
class KernelReport:
    """Everything measured in one run. ``missing`` are kernels of torch that are not here, with the reason."""

    size: int
    threads: int
    variant: str
    buffer_bytes: int
    rows: tuple[int, ...] = ROWS
    kernels: list[Kernel] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def read_gb_s(self) -> float:
        """Median bandwidth of reading the whole buffer with all threads, in 10^9 bytes per second."""
        return statistics.median(rate for kernel in self.kernels for rate in kernel.read_rates.values()) / 1e9

    def to_dict(self) -> dict[str, Any]:
        """All figures for JSON."""
        return {
            "size": self.size,
            "threads": self.threads,
            "variant": self.variant,
            "read_gb_s": self.read_gb_s,
            "kernels": [
                {
                    "name": kernel.name,
                    "bits_per_weight": kernel.bits_per_weight,
                    "read_gb_s_samples": [rate / 1e9 for rate in kernel.read_rates.values()],
                    "rows": [
                        {
                            "rows": rows,
                            "ms": kernel.ms(rows),
                            "gb_s": kernel.gb_s(rows),
                            "share_of_read": share.to_dict() if (share := kernel.share_of_read(rows)) else None,
                            "ratio_to_1": kernel.ratio(rows).to_dict(),
                        }
                        for rows in self.rows
                    ],
                }
                for kernel in self.kernels
            ],
            "missing": self.missing,
        }


def measure_kernels(
    *,
    size: int,
    repeats: int,
    formats: Sequence[str] | None,
    threads: int,
    report: Callable[[str], None],
    rows: Sequence[int] = ROWS,
    cache_bytes: int | None = None,
) -> KernelReport:
    """Measure ``formats``, default all, and torch's kernels, at each of ``rows`` (the first of which must be 1).

    Raises ``ConfigError`` for a format that there is not, a size that the formats cannot have, or an Outrider without
    its native library.
    """
    import numpy as np

    native.require()
    names = _check(size, formats)
    native.library.set_num_threads(threads)
    length = CACHE_TIMES * (cache_bytes or last_level_cache_bytes()) + 4 * size * size
    report(f"filling {length / 1e6:.0f} MB")
    # Bytes 0x20 to 0x2f are positive, normal numbers as float16, bfloat16 and float32, and codes as anything else.
    buffer = np.random.default_rng(0).integers(0x20, 0x30, length, dtype=np.uint8)
    buffer = buffer[-buffer.ctypes.data % ALIGNMENT :]
    result = KernelReport(size, threads, native.library.variant(), len(buffer), tuple(rows))
    result.kernels += [_native_kernel(name, size, buffer, max(rows)) for name in names]
    if has_torch():
        _add_torch_kernels(result, buffer)
    else:
        result.missing["torch"] = "torch is not installed; pip install 'outrider[torch]' measures its kernels too"
    for repeat in range(repeats):
        report(f"round {repeat + 1} of {repeats}")
        for kernel in result.kernels:
            time.sleep(SETTLE_SECONDS)
            kernel.read_rates[repeat] = _read_rate(native.library.read_all, buffer)
            _measure(kernel, repeat, rows)
    return result


def _add_torch_kernels(result: KernelReport, buffer: Any) -> None:
    """torch's own kernels over the same bytes; what this torch does not have is missing."""
    from outrider.torch_backend.kernels import torch_kernels

    weights = result.size * result.size
    found = torch_kernels(result.size, result.threads, partial(_slices, buffer), max(result.rows))
    for name, kernel in found:
        if isinstance(kernel, str):
            result.missing[name] = kernel
        else:
            result.kernels.append(Kernel(name, kernel.nbytes, weights, kernel.run, kernel.matrices))


def last_level_cache_bytes() -> int:
    """The largest cache that the system names, else 32 MiB."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        if text.endswith("K") and text[:-1].isdigit():
            sizes.append(int(text[:-1]) << 10)
    return max(sizes, default=DEFAULT_CACHE_BYTES)


def _check(size: int, formats: Sequence[str] | None) -> list[str]:
    from outrider.models.packing import BITS_PER_WEIGHT

    if size % 256:
        raise ConfigError(f"--size {size!r} is not a multiple of 256, which the K formats need")
    for name in formats or ():
        if name not in BITS_PER_WEIGHT:
            raise ConfigError(f"--formats {name!r} is not known; use {', '.join(BITS_PER_WEIGHT)}")
    return list(BITS_PER_WEIGHT if formats is None else dict.fromkeys(formats))


def _measure(kernel: Kernel, repeat: int, rows: Sequence[int]) -> None:
    """One sample at each row count: as many products in a row as take long enough to time, each with other weights."""
    turn = 0
    for count in rows:
        begin = time.perf_counter()
        kernel.run(turn % kernel.matrices, count)
        once = time.perf_counter() - begin
        calls = max(3, min(64, round(SAMPLE_SECONDS / max(once, 1e-6))))
        begin = time.perf_counter()
        for _ in range(calls):
            turn += 1
            kernel.run(turn % kernel.matrices, count)
        kernel.seconds.setdefault(count, {})[repeat] = (time.perf_counter() - begin) / calls


def _read_rate(read_all: Callable[[Any], int], buffer: Any) -> float:
    """Bytes per second; the first time wakes the threads."""
    read_all(buffer)
    begin = time.perf_counter()
    read_all(buffer)
    return len(buffer) / (time.perf_counter() - begin)


def _slices(buffer: Any, nbytes: int) -> list[Any]:
    """As many pieces of ``nbytes`` as the buffer holds, none overlapping."""
    step = -(-nbytes // ALIGNMENT) * ALIGNMENT
    return [buffer[start : start + nbytes] for start in range(0, len(buffer) - nbytes + 1, step)]


def _native_kernel(name: str, size: int, buffer: Any, most_rows: int) -> Kernel:
    import numpy as np

    from outrider.models.packing import BITS_PER_WEIGHT

    nbytes = round(BITS_PER_WEIGHT[name] * size * size / 8)
    matrices = [native.library.PackedMatrix.from_data(name, size, size, piece) for piece in _slices(buffer, nbytes)]
    x = np.random.default_rng(1).standard_normal((most_rows, size), dtype=np.float32)
    return Kernel(
        name=name,
        nbytes=nbytes,
        weights=size * size,
        run=lambda which, rows: native.library.linear(x[:rows], [matrices[which]]),
        matrices=len(matrices),
    )
