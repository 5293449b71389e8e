"""SmolLM2 on the native kernels, opened once for all tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outrider.models.loader.load import OpenModel, open_model
from outrider.models.loader.packed import PackedWeights
from outrider.models.native import NativeDecoder

FEW_LAYERS = 12


@pytest.fixture(scope="session")
def opened(smollm2_path: Path) -> OpenModel:
    return open_model(str(smollm2_path))


@pytest.fixture(scope="session")
def weights(opened: OpenModel) -> PackedWeights:
    return opened.packed_weights()


@pytest.fixture(scope="session")
def target(opened: OpenModel, weights: PackedWeights) -> NativeDecoder:
    return NativeDecoder(opened.config, weights)


@pytest.fixture(scope="session")
def draft(opened: OpenModel, weights: PackedWeights) -> NativeDecoder:
    """The target's first layers: a draft of the same vocabulary that is often wrong."""
    return NativeDecoder(replace(opened.config, num_layers=FEW_LAYERS), weights)
