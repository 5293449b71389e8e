"""One server with SmolLM2 for all tests that need a real model behind HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.config import EngineConfig, SpeculativeConfig
from outrider.server.settings import ServerSettings
from tests.serving import TOOL_TEMPLATE, RunningServer, running


@pytest.fixture(scope="session")
def server(smollm2_path: Path) -> Iterator[RunningServer]:
    settings = ServerSettings(served_model_names=("smol", "also-smol"), chat_template=TOOL_TEMPLATE)
    # Not adaptive: tests know what is drafted, however busy the machine.
    speculative = SpeculativeConfig(method="ngram", num_speculative_tokens=4, adaptive=False)
    config = EngineConfig(model=str(smollm2_path), max_num_seqs=8, kv_cache_memory=2**27, speculative=speculative)
    with running(config, settings) as found:
        yield found
