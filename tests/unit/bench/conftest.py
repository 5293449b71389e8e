"""Fakes of peers: adapters that need nothing installed, behind the real ``serve.py``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from outrider.bench import peers
from outrider.bench.engines import EngineSpec

SERVE = Path(peers.__file__).parent / "serve.py"

ADAPTER = """
import os, time

class Engine:
    def load(self, model, threads, max_model_len, draft_model, settings):
        print("chatter on stdout that is no reply")
        return {"version": "fake 1", "detail": f"{threads} threads, {max_model_len} tokens", "modes": ["", "fast"]}

    def generate(self, token_ids, max_tokens, end_token_ids, mode):
        if token_ids[0] == 13:
            raise ValueError("thirteen")
        if token_ids[0] == 14 and "STURDY" not in os.environ:
            os.write(2, b"out of luck\\n")
            os._exit(3)
        made = [(token_ids[-1] + i) % 20 for i in range(max_tokens)]
        seconds = (max_tokens - 1) * (0.01 if mode == "fast" else 0.02)
        return {"token_ids": made, "first_s": 0.5, "rest_s": seconds, "rest_tokens": max_tokens - 1}

    def forward(self, context, rows, count):
        return 0.001 * (1 + count)
"""


@pytest.fixture
def fake_peer(tmp_path: Path) -> EngineSpec:
    """A peer whose adapter is made for the test: fixed times, tokens counting up from the prompt's last."""
    (tmp_path / "fake_adapter.py").write_text(ADAPTER, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    return EngineSpec("fake", (sys.executable, str(SERVE), "fake_adapter"), env, todo="make fake")


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python without any package installed."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -E -S "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return script
