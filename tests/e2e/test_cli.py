"""The commands as a user types them, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def outrider(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "outrider", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['outrider', '--help']\n"
        "from outrider.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic', 'gguf', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("demo", "generate", "chat", "pull", "doctor", "audit"):
        assert command in done.stdout


def test_import_is_light_and_public_names_exist() -> None:
    code = (
        "import sys, outrider\n"
        "assert 'torch' not in sys.modules and 'pydantic' not in sys.modules\n"
        "for name in outrider.__all__: getattr(outrider, name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_doctor_says_what_is_used_and_why() -> None:
    done = outrider("doctor", "--json", "-")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert report["backend"]["device"] in ("cpu", "cuda")
    assert report["backend"]["why"]
    assert set(report["models"]) >= {"smollm2-135m-instruct"}


@pytest.mark.model
def test_demo_shows_three_identical_texts(smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    done = outrider("demo", "--max-tokens", "24", "--repeats", "1", "--json", str(path))
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert [p["name"] for p in report["prompts"]] == ["copy", "code", "prose"]
    for prompt in report["prompts"]:
        assert prompt["identical"] is True
        assert prompt["tokens"] == 24
        assert prompt["plain_tok_s"] > 0
        assert prompt["spec_tok_s"] > 0
        assert prompt["mean_acceptance_length"] >= 1
    assert "same tokens" in done.stdout
    assert "accepted" in done.stdout


@pytest.mark.model
def test_chat_answers_line_by_line_and_ends(smollm2_path: Path) -> None:
    done = outrider("chat", "--max-tokens", "8", "--temperature", "0", stdin="Say hello.\n/reset\nSay hello.\n\n")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.strip().splitlines()[:2]
    assert first
    assert first == second, "/reset begins anew"


@pytest.mark.model
def test_generate_reads_stdin_and_stops_at_strings(smollm2_path: Path) -> None:
    words = ["generate", str(smollm2_path), "--prompt-file", "-", "--max-tokens", "40", "--stop", "five", "--json", "-"]
    done = outrider(*words, stdin="one two three four five six, one two three four")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["finish_reason"] == "stop"
    assert report["stop_reason"] == "five"
    assert "five" not in report["text"]
