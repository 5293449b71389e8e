"""What every measuring command says about where its figures come from, and how JSON leaves the program."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "gguf")


def environment(arguments: dict[str, object]) -> dict[str, object]:
    """Machine, versions, git revision and arguments, for a result file."""
    return {"machine": machine(), "versions": versions(), "git": git_revision(), "arguments": arguments}


def machine() -> dict[str, object]:
    """Processor, cores and memory."""
    import psutil

    from outrider.machine import processor_name

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": int(psutil.virtual_memory().total),
    }


def versions() -> dict[str, str]:
    """Outrider, Python, and the packages that compute."""
    from outrider import __version__

    found = {"outrider": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def git_revision() -> str | None:
    """The revision of the checkout that this package lies in, ``+changes`` if it was edited; None outside one."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=5, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    revision = git("rev-parse", "--short", "HEAD")
    if revision is None:
        return None
    return revision + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")


def write_json(report: dict[str, Any], path: str) -> None:
    """Write ``report`` to a file, or to stdout for ``-``. Raises ``ConfigError`` if the file can not be written."""
    from outrider.errors import ConfigError

    escaped = path == "-" and sys.stdout.encoding.lower() != "utf-8"
    text = json.dumps(report, indent=2, ensure_ascii=escaped)
    if path == "-":
        sys.stdout.write(text + "\n")
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write --json {path!r}: {error.strerror}") from None
