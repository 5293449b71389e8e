"""The native routines of this folder, where they are built; NumPy does the same without them, several times slower.

Within one process all distributions go one way, and so do all draws of the target's own token, so what a row gives does
not depend on who asks.
"""

from __future__ import annotations

from types import ModuleType

native: ModuleType | None
try:
    from outrider import _native as native
except ImportError:
    native = None
