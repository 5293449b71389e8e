"""One server with SmolLM2 for all tests that need a real model behind HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.config import EngineConfig
from outrider.server.settings import ServerSettings
from tests.serving import TOOL_TEMPLATE, RunningServer, running


@pytest.fixture(scope="session")
def server(smollm2_path: Path) -> Iterator[RunningServer]:
    settings = ServerSettings(served_model_names=("smol", "also-smol"), chat_template=TOOL_TEMPLATE)
    with running(EngineConfig(model=str(smollm2_path), max_num_seqs=8, kv_cache_memory=2**27), settings) as found:
        yield found
