"""Names of peers, and where their Python is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.bench.engines import PEERS, outrider_specs, parse_peers, peer_specs
from outrider.errors import ConfigError


def test_names_are_taken_once_each_in_order() -> None:
    assert parse_peers("openvino, llama.cpp,openvino") == ["openvino", "llama.cpp"]
    assert parse_peers(",".join(PEERS)) == list(PEERS)
    assert parse_peers("none") == []


@pytest.mark.parametrize("text", ["llama", "llama.cpp,none", "", " , ", "LLAMA.CPP"])
def test_other_names_are_refused_with_those_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"use llama\.cpp, transformers, openvino, vllm, or none"):
        parse_peers(text)


@pytest.mark.parametrize("name", list(PEERS))
def test_the_python_of_a_peer(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bare_python: Path) -> None:
    peer = PEERS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(peer.variable, raising=False)
    assert peer.python() is None
    folder = tmp_path / peer.folder / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(bare_python)
    assert peer.python() == str(folder / "python"), "not resolved: a link is what makes it a virtual environment"
    monkeypatch.setenv(peer.variable, str(bare_python))
    assert peer.python() == str(bare_python)
    monkeypatch.setenv(peer.variable, "/no/such/python")
    with pytest.raises(ConfigError, match=rf"{peer.variable}='/no/such/python'"):
        peer_specs([name], None, 1)


def test_every_peer_has_an_adapter_file() -> None:
    for spec in peer_specs(list(PEERS), None, 2):
        _, serve, adapter = spec.command
        assert (Path(serve).parent / f"{adapter}.py").is_file()
        assert spec.todo.startswith("make peers")
        assert spec.env["OMP_NUM_THREADS"] == "2"
        assert "PYTHONPATH" not in spec.env


def test_an_engine_whose_modes_are_fixed_at_loading_has_a_process_for_each() -> None:
    plain, ngram = peer_specs(["vllm"], None, 1)
    assert [spec.title for spec in (plain, ngram)] == ["vllm", "vllm ngram"]
    assert [spec.measure_passes for spec in (plain, ngram)] == [True, False]
    *_, drafting = peer_specs(["vllm"], "draft.gguf", 1)
    assert (drafting.title, drafting.settings) == ("vllm draft_model", {"mode": "draft_model"})
    assert drafting.owns("vllm", ["vllm draft_model"])
    assert not drafting.owns("vllm", ["vllm"])
    (whole,) = peer_specs(["llama.cpp"], None, 1)
    assert whole.owns("llama.cpp", ["llama.cpp"])


def test_the_draft_model_runs_in_a_process_of_its_own() -> None:
    (alone,) = outrider_specs({"num_speculative_tokens": 3}, {"dtype": "float32"}, 2)
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    assert alone.settings == {"dtype": "float32", "prefix_caching": False, "speculative": ngram}
    draft = {"model": "draft.gguf", "quantization": "int4", "draft_vocab_size": 900, "num_speculative_tokens": 3}
    without, with_draft = outrider_specs(draft, {"dtype": "float32"}, 2)
    assert without.settings == alone.settings
    assert with_draft.settings == alone.settings | {"speculative": {**draft, "method": "draft_model"}}
    assert with_draft.modes == ("draft_model",)
    assert not with_draft.measure_passes


def test_speculation_off_and_settings_that_do_not_fit() -> None:
    (alone,) = outrider_specs({"method": "off"}, {}, 2)
    assert alone.settings == {"prefix_caching": False, "speculative": {"method": "off"}}
    with pytest.raises(ConfigError, match="quantization applies to the draft model"):
        outrider_specs({"quantization": "int4"}, {}, 2)
    with pytest.raises(ConfigError, match="dtype='int3'"):
        outrider_specs({}, {"dtype": "int3"}, 2)
