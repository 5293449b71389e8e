"""The door to what is not installed with Outrider itself: one line says which extra brings it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from outrider.errors import ConfigError

TORCH = ("torch", "transformers")


def has_torch() -> bool:
    """True if the extra ``outrider[torch]`` is installed; imports nothing of it."""
    return all(find_spec(package) is not None for package in TORCH)


def require_torch(what: str) -> None:
    """Raise ``ConfigError``, saying that ``what`` needs it, unless the extra ``outrider[torch]`` is installed."""
    missing = next((package for package in TORCH if find_spec(package) is None), None)
    if missing is not None:
        raise ConfigError(f"{what} needs {missing}, which is not installed; pip install 'outrider[torch]'")


def torch_backend(module: str, what: str) -> ModuleType:
    """``outrider.torch_backend.<module>``, for code below it. Raises ``ConfigError`` as ``require_torch`` does."""
    require_torch(what)
    return import_module(f"outrider.torch_backend.{module}")
