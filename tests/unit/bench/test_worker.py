"""The line protocol between a measurement and an engine's process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outrider.bench.engines import EngineSpec
from outrider.bench.worker import MissingEngineError, Worker, WorkerError
from tests.unit.bench.conftest import SERVE

LOAD = {"model": "m", "threads": 2, "max_model_len": 32, "draft_model": None, "settings": {}}


def started(spec: EngineSpec) -> Worker:
    return Worker(spec.name, spec.command, spec.env)


def generate(worker: Worker, first: int, max_tokens: int = 3) -> list[int]:
    reply = worker.ask("generate", timeout=60, token_ids=[first, 4], max_tokens=max_tokens, end_token_ids=[1], mode="")
    tokens: list[int] = reply["token_ids"]
    return tokens


def test_requests_are_answered_in_turn_and_chatter_is_no_reply(fake_peer: EngineSpec) -> None:
    with started(fake_peer) as worker:
        loaded = worker.ask("load", timeout=60, **LOAD)
        assert loaded == {"version": "fake 1", "detail": "2 threads, 32 tokens", "modes": ["", "fast"]}
        assert generate(worker, 2) == [4, 5, 6]
        assert worker.ask("memory", timeout=60)["peak_bytes"] > 1e6


def test_forward_takes_the_counts_in_turn_and_drops_the_first_round(fake_peer: EngineSpec) -> None:
    with started(fake_peer) as worker:
        worker.ask("load", timeout=60, **LOAD)
        reply = worker.ask("forward", timeout=60, context=[1], rows=[2, 3], counts=[1, 2], times=3)
    assert reply == {"seconds": {"1": [0.002] * 3, "2": [0.003] * 3}}


def test_an_error_is_told_and_the_worker_goes_on(fake_peer: EngineSpec) -> None:
    with started(fake_peer) as worker:
        with pytest.raises(WorkerError, match=r"^fake: ValueError: thirteen$"):
            generate(worker, 13)
        with pytest.raises(WorkerError, match="no request 'dance'"):
            worker.ask("dance", timeout=60)
        assert generate(worker, 2) == [4, 5, 6]


def test_a_worker_that_ends_is_told_with_its_last_words(fake_peer: EngineSpec) -> None:
    with started(fake_peer) as worker:
        for _ in range(2):
            with pytest.raises(WorkerError, match="fake: its worker ended with code 3: out of luck"):
                generate(worker, 14)


def test_a_silent_worker_is_given_up() -> None:
    with (
        Worker("mute", [sys.executable, "-c", "import sys; sys.stdin.read()"], {}) as worker,
        pytest.raises(WorkerError, match="mute: no answer to 'load' within 0 s"),
    ):
        worker.ask("load", timeout=0.2)


@pytest.mark.parametrize("line", ["no json", "[1, 2]"])
def test_an_answer_that_is_no_object(line: str) -> None:
    program = f"input(); print({line!r}, flush=True); input()"
    with (
        Worker("odd", [sys.executable, "-c", program], {}) as worker,
        pytest.raises(WorkerError, match="odd: its worker answered"),
    ):
        worker.ask("load", timeout=60)


def test_an_engine_that_is_not_installed(bare_python: Path) -> None:
    with (
        Worker("llama.cpp", [str(bare_python), str(SERVE), "llama_cpp_worker"], {}) as worker,
        pytest.raises(MissingEngineError, match="No module named"),
    ):
        worker.ask("load", timeout=60, **LOAD)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingEngineError, match="No such file"):
        Worker("llama.cpp", [str(tmp_path / "python")], {})
