"""The user's cache directory: where it is, atomic writes, locks between processes. Knows nothing about models."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def cache_directory() -> Path:
    """``$OUTRIDER_CACHE``, else ``$XDG_CACHE_HOME/outrider``, else ``~/.cache/outrider``; it need not exist yet."""
    if own := os.environ.get("OUTRIDER_CACHE"):
        return Path(own).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).expanduser() / "outrider"
    return Path.home() / ".cache" / "outrider"


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of ``path`` when the block ends, or vanishes when it raises."""
    import tempfile  # most starts write nothing

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock ``path``.lock against every other process, waiting for as long as it takes."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(path.name + ".lock")):
        yield
