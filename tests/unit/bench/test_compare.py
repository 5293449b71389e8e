"""The race and its result, with fake engines, and the command on a tiny real model without peers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outrider.bench.compare import Plan, compare
from outrider.bench.comparison import Comparison, EngineFigures, Run
from outrider.bench.engines import EngineSpec, peer_specs
from outrider.bench.prompts import BenchPrompt
from outrider.bench.worker import WorkerError
from outrider.cli.bench import app
from outrider.errors import ConfigError, InvalidRequestError
from tests.e2e.test_bad_input import tiny_model


def plan(*prompts: tuple[int, ...], repeats: int = 2, max_model_len: int = 32) -> Plan:
    named = [BenchPrompt(f"p{number}", tokens) for number, tokens in enumerate(prompts)]
    return Plan("m.gguf", max_model_len, (1,), named, max_tokens=5, repeats=repeats, threads=1)


def as_outrider(spec: EngineSpec) -> EngineSpec:
    """The fake, in Outrider's place; it survives the token that ends other fakes."""
    return replace(spec, name="outrider", peer=False, env={**spec.env, "STURDY": "1"})


@pytest.fixture
def seen() -> list[str]:
    return []


def test_every_mode_runs_every_prompt_in_every_round_by_turns(fake_peer: EngineSpec, seen: list[str]) -> None:
    other = replace(fake_peer, name="other")
    result = compare(plan((2, 3), (4,)), [fake_peer, other], seen.append)
    assert result.labels == ["fake", "fake fast", "other", "other fast"]
    keys = [(run.repeat, run.prompt, run.label) for run in result.runs]
    assert len(set(keys)) == len(keys) == 2 * 2 * 4
    first_of_each = [label for i, (_, _, label) in enumerate(keys) if i % 4 == 0]
    assert first_of_each == ["fake", "fake fast", "fake fast", "other"], "each time another one begins"
    ratio = result.ratio("fake fast", "other")
    assert ratio is not None
    assert ratio.median == pytest.approx(2.0)
    assert ratio.pairs == 4
    assert result.pooled_rate("other") == pytest.approx(50.0)


def test_passes_and_memory(fake_peer: EngineSpec, seen: list[str]) -> None:
    result = compare(plan((2, 3)), [fake_peer, replace(fake_peer, name="other", measure_passes=False)], seen.append)
    measured, other = result.engines
    assert measured.prompt_rate == pytest.approx(result.prompt_tokens / 0.5)
    assert (result.prompt_tokens, result.context_tokens, result.rows) == (30, 24, [1, 2, 4, 8])
    assert measured.forward_ms(1) == pytest.approx(2.0)
    ratio = measured.forward_ratio(8)
    assert ratio is not None
    assert ratio.median == pytest.approx(4.5)
    assert measured.peak_bytes > 1e6
    assert (other.prompt_rate, other.forward_ms(1)) == (None, None)


def test_absent_and_broken_peers_are_named_and_the_others_go_on(
    fake_peer: EngineSpec, bare_python: Path, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = replace(fake_peer, name="absent", command=("/no/such/python",))
    monkeypatch.setenv("OUTRIDER_PEERS_PYTHON", str(bare_python))
    (bare,) = peer_specs(["llama.cpp"], None, 1)
    result = compare(plan((2, 3), (14, 3)), [as_outrider(fake_peer), absent, bare], seen.append)
    assert [(one.name, one.absent, one.todo) for one in result.missing] == [
        ("absent", True, "make fake"),
        ("llama.cpp", True, "make peers"),
    ]
    breaking = replace(fake_peer, name="breaking")
    result = compare(plan((2, 3), (14, 3)), [as_outrider(fake_peer), breaking], seen.append)
    (missing,) = result.missing
    assert (missing.name, missing.absent, missing.todo) == ("breaking", False, "")
    assert "ended with code 3" in missing.reason
    assert [engine.name for engine in result.engines] == ["outrider"]
    assert {run.label for run in result.runs if run.prompt == "p1"} == {"outrider", "outrider fast"}


def test_outrider_failing_ends_the_comparison(fake_peer: EngineSpec, seen: list[str]) -> None:
    with pytest.raises(WorkerError, match="outrider: ValueError: thirteen"):
        compare(plan((13, 3)), [as_outrider(fake_peer)], seen.append)


def test_prompts_that_do_not_fit_are_refused_before_anything_starts(fake_peer: EngineSpec, seen: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="'p0' has 28 tokens"):
        compare(plan((2,) * 28), [fake_peer], seen.append)
    assert seen == []


def test_a_short_context_leaves_room_for_fewer_rows() -> None:
    small = plan((2, 3), max_model_len=6)
    assert (small.prompt_tokens, small.context_tokens, small.rows) == (4, 1, (1, 2, 4))
    large = plan((2, 3), max_model_len=4096)
    assert (large.prompt_tokens, large.context_tokens, large.rows) == (512, 256, (1, 2, 4, 8))
    assert large.max_model_len == 513 + 64


def run_of(label: str, tokens: tuple[int, ...], prompt: str = "p", repeat: int = 0, rest_s: float = 1.0) -> Run:
    return Run(label, prompt, repeat, tokens, 0.1, rest_s, len(tokens) - 1)


def test_agreement_and_identity() -> None:
    engines = [EngineFigures("outrider", peer=False, labels=["outrider off", "outrider ngram"])]
    engines.append(EngineFigures("x", peer=True, labels=["x", "x fast"]))
    result = Comparison(["p", "q"], 512, 256, [1], engines=engines)
    result.runs += [run_of("outrider off", (1, 2, 3)), run_of("outrider ngram", (1, 2, 3)), run_of("x", (1, 2, 4))]
    result.runs += [run_of("outrider off", (5, 6), "q"), run_of("x", (5, 6), "q")]
    assert result.agreement("x") == (1, 2, 2)
    assert result.identical
    assert result.baselines == ["outrider off", "x", "x fast"]
    assert result.plain_baselines == ["outrider off", "x"]
    result.runs.append(run_of("outrider ngram", (5, 7), "q", repeat=1))
    assert not result.identical


def test_rates_of_texts_with_one_token() -> None:
    result = Comparison(["p", "q"], 512, 256, [1], engines=[EngineFigures("x", peer=True, labels=["x"])])
    result.runs += [run_of("x", (1,), rest_s=0.0), run_of("x", (1, 2, 3), "q", rest_s=0.5)]
    assert (result.pooled_rate("x"), result.median_rate("x")) == (4.0, 4.0)
    assert result.ratio("x", "absent") is None
    assert result.pooled_rate("absent") is None
    assert result.mean_acceptance_length("x") is None


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("tiny")))


def test_the_command_on_a_real_model_with_peers_missing(
    tiny: str, tmp_path: Path, bare_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_PEERS_PYTHON", str(bare_python))
    lines = tmp_path / "p.jsonl"
    lines.write_text('{"prompt": "w3 w4 w3 w4", "name": "first"}\n{"token_ids": [5, 6]}\n', encoding="utf-8")
    out = tmp_path / "result.json"
    words = ["compare", "--model", tiny, "--draft-model", tiny, "--peers", "llama.cpp,transformers", "-k", "3"]
    words += ["--speculative-config", '{"adaptive": false}']  # over so small a model no draft would pay
    words += ["--prompts", str(lines), "--max-tokens", "6", "--repeats", "1", "--threads", "1", "--json", str(out)]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    for word in ("outrider off", "outrider ngram", "outrider draft_model", "x off", "n=8", "2 of 2"):
        assert word in result.stdout, result.stdout
    for name in ("llama.cpp", "transformers"):
        assert f"{name} is missing: No module named" in result.stdout
    report: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    assert report["identical"] is True
    assert [one["name"] for one in report["missing"]] == ["llama.cpp", "transformers"]
    assert [one["engine"] for one in report["decode"]] == ["outrider off", "outrider ngram", "outrider draft_model"]
    drafted = report["decode"][2]
    assert drafted["mean_acceptance_length"] > 1, "the model drafts for itself"
    assert drafted["same_as_outrider_off"]["prompts"] == 2
    assert [entry["rows"] for entry in report["engines"][0]["forward"]] == [1, 2, 4, 8]
    assert report["engines"][0]["prompt_tokens_per_s"] > 0
    assert {run["prompt"] for run in report["runs"]} == {"first", "2"}
    assert report["arguments"]["speculative_config"]["num_speculative_tokens"] == 3
    assert {"machine", "versions", "git"} <= report.keys()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--quantization", "int3"], "quantization='int3'"),
        (["--speculative-config", "magic"], "method='magic'"),
        (["--peers", "llama"], "--peers 'llama' is not known"),
        (["--max-tokens", "1"], "--max-tokens 1"),
        (["--prompts", "x.jsonl", "--humaneval", "2"], "not both"),
        (["--prompts", "/no/such/file"], "cannot read --prompts"),
        (["--json", "/no/such/folder/x.json"], "its folder does not exist"),
        (["--humaneval", "900"], "between 1 and 164"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_options_are_refused_before_anything_runs(tiny: str, options: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["compare", "--model", tiny, *options])
    assert isinstance(result.exception, ConfigError | InvalidRequestError)
    assert words in str(result.exception)
