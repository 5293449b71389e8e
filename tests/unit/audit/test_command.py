"""``outrider audit exact``: what it prints, where, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.audit.cases import Build, all_cases
from outrider.audit.exact import ExactReport, audit_exact
from outrider.audit.mutations import MUTATIONS
from outrider.cli.audit import app


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A small audit in place of the whole."""
    few = [case for case in all_cases() if case.num_strings <= 3**2 and case.num_drafts]
    monkeypatch.setattr("outrider.audit.exact.ALL_MUTATIONS", MUTATIONS[:2])
    monkeypatch.setattr("outrider.audit.properties.MONTE_CARLO_DRAWS", 500)

    def small(build: Build | None = None, progress: object = None) -> ExactReport:
        assert callable(progress)
        return audit_exact(build, progress=progress, cases=few)

    monkeypatch.setattr("outrider.audit.exact.audit_exact", small)
    return monkeypatch


@pytest.mark.usefixtures("quick")
def test_table_on_stdout_progress_on_stderr(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = CliRunner().invoke(app, ["exact", "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert "PASSED" in result.stdout
    assert "2 of 2 mistakes caught; 5 of 5 properties hold" in " ".join(result.stdout.split())
    assert "planting a fault" in result.stderr
    assert "planting a fault" not in result.stdout
    written = json.loads(path.read_text(encoding="utf-8"))
    assert {"cases", "max_tv", "mutations", "properties", "passed"} <= set(written)
    assert {"machine", "versions", "git", "arguments"} <= set(written)
    assert written["passed"] is True


@pytest.mark.usefixtures("quick")
def test_json_to_stdout_is_nothing_but_json() -> None:
    result = CliRunner().invoke(app, ["exact", "--json", "-"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["arguments"] == {"json": "-"}


def test_faulty_build_exits_with_one(quick: pytest.MonkeyPatch) -> None:
    faulty = MUTATIONS[4].plant(Build())
    quick.setattr("outrider.audit.exact.Build", lambda: faulty)
    result = CliRunner().invoke(app, ["exact"])
    assert result.exit_code == 1
    assert "NOT EXACT" in result.stdout
    assert "FAILED" in result.stdout
