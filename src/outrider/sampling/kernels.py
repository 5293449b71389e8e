"""The native sampling routines; None if the native library is not built, and NumPy is used, several times slower.

The choice is made once per process, because the two implementations round differently: every caller gets the same
result for a row.
"""

from __future__ import annotations

from types import ModuleType

native: ModuleType | None
try:
    from outrider import _native as native
except ImportError:
    native = None
