"""The one door to the native library, ``outrider._native`` (C++, in ``csrc/``): whether it is built, and what it holds.

``native.library`` is the extension module, typed by ``_native.pyi``. Where it was not built, reading that attribute
raises ``ConfigError``; ``available`` asks first.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from outrider.errors import ConfigError
from outrider.machine import usable_processors

__all__ = ["available", "describe", "library", "require"]

if TYPE_CHECKING:
    from outrider import _native as library
else:

    def __getattr__(name: str) -> ModuleType | None:
        if name != "library":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        require()
        module, _ = _loaded()
        globals()["library"] = module  # found without this function from now on
        return module


@cache
def _loaded() -> tuple[ModuleType | None, str]:
    """(library or None, why it is not there)."""
    try:
        from outrider import _native
    except ImportError as error:
        return (
            None,
            f"the native library is not built ({error}); install Outrider with pip on a machine with a compiler",
        )
    _native.set_default_threads(usable_processors())
    return _native, ""


def available() -> bool:
    """True if the native library can be used."""
    return _loaded()[0] is not None


def require() -> None:
    """Raise ``ConfigError`` unless the native library can be used."""
    module, problem = _loaded()
    if module is None:
        raise ConfigError(f"{problem}; or use backend='reference'")


def describe() -> str:
    """Which kernels run on this processor, or why none do."""
    module, problem = _loaded()
    if module is None:
        return problem
    return f"{module.variant()} kernels, up to {module.num_threads()} threads, chosen by measurement"
