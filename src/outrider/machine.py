"""What of the machine this process may use: processors and memory, within its affinity and its control groups' limits.

Files are those of Linux: ``/proc/self/cgroup`` names the process's groups, ``/proc/self/mountinfo`` where their folders
are, and a group's limit holds for all groups below it (kernel documentation, ``admin-guide/cgroup-v2`` and
``admin-guide/cgroup-v1``). ``root`` is the folder that stands for ``/``; tests give another. A file that is missing or
cannot be read sets no limit.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


@dataclass(frozen=True)
class GroupLimits:
    """What the control groups allow; None without a limit.

    processors  processor seconds per second
    memory      bytes
    """

    processors: float | None
    memory: int | None


def usable_processors(root: Path = _ROOT) -> int:
    """Processors this process may use: its affinity and its groups' quota, rounded up; at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(root)
    return max(1, count if quota is None else min(count, math.ceil(quota)))


def available_memory(root: Path = _ROOT) -> int:
    """Bytes this process may still take: the system's available memory, and what each of its groups leaves.

    File pages that a group can drop count as left. At least 0.
    """
    return max(0, min([_system_memory(root), *(limit - used for limit, used in _memory(root))]))


def group_limits(root: Path = _ROOT) -> GroupLimits:
    """The strictest limits of this process's control groups."""
    limit = min((limit for limit, _ in _memory(root)), default=None)
    total = _meminfo(root, "MemTotal")
    # Version 1 writes a huge number for no limit.
    return GroupLimits(_quota(root), None if limit is None or (total is not None and limit >= total) else limit)


def _quota(root: Path) -> float | None:
    quotas = []
    for folder, version in _groups(root, "cpu"):
        if version == 2:
            words = (_text(folder / "cpu.max") or "").split()
            limit, period = (_number(word) for word in words) if len(words) == 2 else (None, None)
        else:
            limit, period = _number(_text(folder / "cpu.cfs_quota_us")), _number(_text(folder / "cpu.cfs_period_us"))
        if limit is not None and limit > 0 and period:
            quotas.append(limit / period)
    return min(quotas, default=None)


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes that count against it and cannot be dropped) of each group that has a limit."""
    for folder, version in _groups(root, "memory"):
        names: tuple[str, ...]
        if version == 2:
            names, usage, droppable = ("memory.max", "memory.high"), "memory.current", "inactive_file"
        else:
            names, usage, droppable = ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"
        limits = [limit for name in names if (limit := _number(_text(folder / name))) is not None]
        if not limits:
            continue
        used = _number(_text(folder / usage)) or 0
        found = re.search(rf"^{droppable} (\d+)$", _text(folder / "memory.stat") or "", re.MULTILINE)
        yield min(limits), max(0, used - (int(found[1]) if found else 0))


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """(folder, version) of this process's groups that may limit ``controller``, the innermost first."""
    places: dict[int, str] = {}
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and (parts[0], parts[1]) == ("0", ""):
            places[2] = parts[2]
        elif len(parts) == 3 and controller in parts[1].split(","):
            places[1] = parts[2]
    mounted = set()
    for line in (_text(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, options) = before.split(), _kind_and_options(after)
        version = {"cgroup": 1, "cgroup2": 2}.get(kind)
        if version is None or len(fields) < 5 or version not in places or version in mounted:
            continue
        if version == 1 and controller not in options:
            continue
        mounted.add(version)
        top = root / _unescaped(fields[4]).lstrip("/")
        inner = _below(places[version], _unescaped(fields[3]))
        yield from ((top.joinpath(*inner[:depth]), version) for depth in range(len(inner), -1, -1))


def _kind_and_options(after: str) -> tuple[str, list[str]]:
    """The file system's type and the superblock's options, of the last part of a line of ``mountinfo``."""
    words = after.split()
    return (words[0], words[2].split(",")) if len(words) >= 3 else ("", [])


def _below(place: str, top: str) -> tuple[str, ...]:
    """The folders from the mount of ``top`` to the group ``place``; none for a group outside of what is mounted."""
    path = PurePosixPath(place)
    if ".." in path.parts or not path.is_relative_to(top):
        return ()
    return path.relative_to(top).parts


def _unescaped(path: str) -> str:
    """``mountinfo`` writes blanks and backslashes in octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _system_memory(root: Path) -> int:
    available = _meminfo(root, "MemAvailable")
    if available is not None:
        return available
    import psutil

    return int(psutil.virtual_memory().available)


def _meminfo(root: Path, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _text(root / "proc/meminfo") or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _number(text: str | None) -> int | None:
    """None for a missing file and for ``max``."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def processor_name() -> str:
    """The processor's own name where the system tells it."""
    for line in (_text(Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
