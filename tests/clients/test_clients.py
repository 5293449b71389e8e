"""Clients that people use with such servers, run as they are, in an environment of their own: ``make test-clients``."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import server
from tests.serving import RunningServer

__all__ = ["server"]

HERE = Path(__file__).parent
BIN = HERE.parents[1] / ".venv-clients" / "bin"

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not (BIN / "lm_eval").exists(), reason="the clients are not installed; run make test-clients"),
]


def run(folder: Path, *command: str) -> str:
    """The output of one of the clients' commands; nothing may leave this machine."""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(folder / "datasets"),
        "OPENAI_API_KEY": "none",
        "LANGSMITH_TRACING": "false",
        "PYTHONPATH": "",
    }
    program, *words = command
    done = subprocess.run(
        [str(BIN / program), *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_guidellm_runs_a_benchmark(server: RunningServer, tmp_path: Path) -> None:
    prompts = [{"prompt": text, "output_tokens_count": 12} for text in ("Once upon a time", "1 2 3 4", "The fox")]
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps(prompt) for prompt in prompts * 4), encoding="utf-8")
    words = [
        "--profile",
        "kind=concurrent,streams=2",
        "--constraint",
        "kind=max_requests,count=6",
        "--disable-progress",
    ]
    data = ["--data", "kind=json_file,path=prompts.jsonl", "--output", "kind=json,path=report.json"]
    run(tmp_path, "guidellm", "run", "--backend", f"kind=openai_http,target={server.url}", *words, *data)
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    (benchmark,) = report["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["errored"] == 0
    assert totals["successful"] == 6


def test_lm_eval_scores_a_task(server: RunningServer, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    server.ready.tokenizer.backend.save(str(tokenizer / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "model_max_length": 8192}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    task = (HERE / "tasks" / "capitals.yaml").read_text(encoding="utf-8")
    task = task.replace("CAPITALS_JSON", str(HERE / "tasks" / "capitals.json"))
    (tmp_path / "capitals.yaml").write_text(task, encoding="utf-8")
    arguments = f"model=smol,base_url={server.url}/v1/completions,tokenizer={tokenizer},num_concurrent=2"
    words = ["--tasks", "capitals", "--include_path", str(tmp_path), "--output_path", str(tmp_path / "results")]
    run(tmp_path, "lm_eval", "run", "--model", "local-completions", "--model_args", arguments, *words)
    (found,) = (tmp_path / "results").rglob("results_*.json")
    results: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))["results"]["capitals"]
    assert results["acc,none"] >= 0.8


def test_langchain_asks_streams_and_calls(server: RunningServer, tmp_path: Path) -> None:
    answer = run(tmp_path, "python", str(HERE / "langchain_client.py"), f"{server.url}/v1")
    whole, streamed, structured, calls, usage = json.loads(answer.splitlines()[-1])
    assert whole
    assert streamed == whole
    assert structured["name"] in ("Paris", "Rome")
    (call,) = calls
    assert call["name"] == "City"
    assert call["args"]["name"] in ("Paris", "Rome")
    assert usage["output_tokens"] > 0
