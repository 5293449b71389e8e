"""``outrider serve`` as a process: it starts after a kill, drains on SIGTERM, and says what is wrong in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider.cli.main import main
from outrider.cli.serve import welcome
from outrider.server.settings import ServerSettings

WAIT_S = 90.0


@contextmanager
def process(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command under way, and its address once it listens."""
    command = [sys.executable, "-m", "outrider", "serve", *words]
    environment = {**os.environ, "OUTRIDER_API_KEY": "sesame", "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert started.stderr is not None
        first = started.stderr.readline()
        found = re.fullmatch(r"Playground: (http://127\.0\.0\.1:\d+)/\n", first)
        assert found, first + started.stderr.read()
        yield started, found[1]
    finally:
        started.kill()
        started.wait()
        if started.stderr is not None:
            started.stderr.close()


def wait_until_ready(client: httpx.Client, url: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while client.get(f"{url}/health").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.model
def test_a_server_killed_while_loading_or_at_work_starts_again_and_sigterm_lets_streams_end(smollm2_path: Path) -> None:
    headers = {"Authorization": "Bearer sesame"}
    body = {"prompt": "Once", "max_tokens": 150, "ignore_eos": True, "stream": True, "temperature": 0}
    words = [str(smollm2_path), "--log-format", "json", "--max-num-seqs", "4", "--max-model-len", "512"]
    with process(*words, "--port", "0") as (killed, url):
        port = url.rpartition(":")[2]
        with pytest.raises(httpx.HTTPError), httpx.Client(headers=headers, timeout=WAIT_S) as client:
            killed.kill()  # in the middle of loading
            client.get(f"{url}/v1/models")
        killed.wait(WAIT_S)
    with process(*words, "--port", port) as (killed, url), httpx.Client(headers=headers, timeout=WAIT_S) as client:
        wait_until_ready(client, url)
        streams = [client.stream("POST", f"{url}/v1/completions", json=body) for _ in range(6)]
        with ExitStack() as stack:
            lines_of_each = [stack.enter_context(stream).iter_lines() for stream in streams]
            next(lines_of_each[0])
            killed.kill()  # four streams run and two wait
            for lines in lines_of_each:
                with pytest.raises(httpx.HTTPError):
                    list(lines)
        killed.wait(WAIT_S)
    with process(*words, "--port", port) as (server, url), httpx.Client(headers=headers, timeout=WAIT_S) as client:
        wait_until_ready(client, url)
        with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.send_signal(signal.SIGTERM)
            while httpx.get(f"{url}/health").status_code != 503:
                time.sleep(0.01)
            refused = client.post(f"{url}/v1/completions", json=body)
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert server.wait(WAIT_S) == 0
        assert server.stderr is not None
        log = server.stderr.read()
    lines_of_log = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert any(line.get("path") == "/v1/completions" and line.get("status") == 200 for line in lines_of_log)
    assert "sesame" not in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["no-such-model"], "no model 'no-such-model'"),
        (["x", "--log-format", "xml"], "--log-format 'xml' must be text or json"),
        (["x", "--reasoning-parser", "deepseek"], "--reasoning-parser 'deepseek' must be auto, think or off"),
        (["x", "--kv-cache-memory", "lots"], "--kv-cache-memory 'lots' must be a number of bytes"),
        (["x", "--chat-template", "no/such/file"], "cannot read --chat-template"),
        (["x", "--max-waiting", "-1"], "max_waiting=-1"),
        (["x", "--speculative-config", "warp"], "method='warp'"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["outrider", "serve", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert expected in line


def test_flags_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    got: dict[str, Any] = {}
    monkeypatch.setattr("outrider.server.run.run", lambda config, settings, listener: got.update(settings=settings))
    monkeypatch.setattr("outrider.server.logs.configure_logging", lambda *_: None)
    monkeypatch.setattr("outrider.cli._options.fetch", lambda model, speculative, **more: got.update(more))
    monkeypatch.setenv("OUTRIDER_API_KEY", "sesame")
    words = "x --port 0 --served-model-name a --max-waiting 7 --max-num-seqs 3 --max-body-size 1KiB --grace-seconds 2"
    more = "--cors-origin http://b --cors-origin http://c --reasoning-parser off"
    monkeypatch.setattr(sys, "argv", ["outrider", "serve", *words.split(), *more.split()])
    with suppress(SystemExit):
        main()
    assert got["max_num_seqs"] == 3
    assert got["settings"] == ServerSettings(
        served_model_names=("a",),
        api_key="sesame",
        cors_origins=("http://b", "http://c"),
        max_waiting=7,
        max_body_bytes=1024,
        grace_s=2.0,
        reasoning_parser="off",
    )


def test_the_lines_to_paste_are_whole() -> None:
    lines = welcome("some/model", "0.0.0.0", 8000, keyed=True)
    assert "http://127.0.0.1:8000/v1/chat/completions" in lines
    assert "$OUTRIDER_API_KEY" in lines
    body = re.search(r"-d '(.*)'", lines)
    assert body is not None
    assert json.loads(body[1])["model"] == "some/model"
    curl, python = lines.split("\n\n")[1:3]
    assert curl.startswith("curl ")  # as it is, without an indent that a prompt would choke on
    compile(python, "welcome", "exec")
    assert "http://[::1]:9/" in welcome("m", "::", 9, keyed=False)
    assert "Authorization" not in welcome("m", "::", 9, keyed=False)
