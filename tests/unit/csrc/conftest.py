"""Fixtures of the kernel tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outrider import native


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    """A test that sets the number of threads leaves it as it was."""
    if not native.available():
        yield
        return
    before = native.library.num_threads()
    yield
    native.library.set_num_threads(before)
