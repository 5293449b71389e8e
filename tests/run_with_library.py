"""Run the kernel tests over the package in a folder, past any editable install: ``make sanitize``, ``make emulate``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def main() -> int:
    """Exit code of pytest; 2 if another library than the folder's would be tested."""
    folder = Path(sys.argv[1]).resolve()
    sys.meta_path[:] = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
    sys.path.insert(0, str(folder))
    from outrider import _native

    found = Path(str(_native.__file__)).resolve()
    if folder not in found.parents:
        print(f"this would test {found}, not the library in {folder}", file=sys.stderr)
        return 2
    print(f"testing {found}")
    return int(pytest.main(["tests/unit/csrc", "-p", "no:cacheprovider"]))


if __name__ == "__main__":
    sys.exit(main())
