"""What a user gets for a mistake: one line that says what to do, exit code 2, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.cli.main import main


@pytest.fixture
def outrider(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Run the command in this process; returns (exit code, stdout, stderr)."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["outrider", *words])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def tiny_model(folder: Path, *, words: int = 20, seed: int = 0, word: str = "w") -> Path:
    """A random two-layer Llama with a tokenizer of ``word`` and a number, as a Hugging Face folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        eos_token_id=1,
        bos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"{word}{i}": i for i in range(words)}, unk_token=f"{word}0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("target")))


def one_line(err: str) -> str:
    lines = [line for line in err.splitlines() if line.startswith("outrider: error: ")]
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return lines[0]


def test_the_tiny_model_itself_works(outrider: Any, model: str) -> None:
    code, out, err = outrider(
        "generate", model, "--prompt", "w3 w4 w3", "--max-tokens", "4", "--ignore-eos", "--json", "-"
    )
    assert code == 0, err
    report = json.loads(out)
    assert len(report["token_ids"]) == 4
    assert {"machine", "versions", "git", "arguments", "metrics"} <= report.keys()


BAD_OPTIONS: list[tuple[list[str], list[str]]] = [
    (["--prompt", ""], ["prompt is empty"]),
    (["--prompt", "w2 " * 40], ["40 tokens", "32"]),
    (["--prompt", "w2", "--regex", "a"], ["structured_outputs need a byte-level tokenizer"]),
    (["--prompt", "w2", "--regex", "a", "--choice", "b"], ["exactly one", "regex and choice"]),
    (["--prompt", "w2", "--json-schema", "{"], ["is not JSON"]),
    (["--prompt", "w2", "--json-schema", "no-such-file"], ["--json-schema 'no-such-file'", "No such file"]),
    (["--prompt", "w2", "--json-object", "--ignore-eos"], ["ignore_eos"]),
    (["--prompt", "w2", "--prediction-file", "no-such-file"], ["--prediction-file", "No such file"]),
    (["--prompt", "w2", "--speculative-config", "sufix"], ["method='sufix'", "suffix"]),
    (["--prompt", "w2", "--speculative-config", "no_module:Own"], ["no_module:Own", "ModuleNotFoundError"]),
    (["--prompt", "w2", "--top-p", "0"], ["top_p=0.0", "greater than 0"]),
    (["--prompt", "w2", "--top-p", "2"], ["top_p=2.0", "less than or equal to 1"]),
    (["--prompt", "w2", "--temperature", "-1"], ["temperature=-1.0"]),
    (["--prompt", "w2", "--top-k", "-2"], ["top_k=-2"]),
    (["--prompt", "w2", "--min-p", "1.5"], ["min_p=1.5", "less than or equal to 1"]),
    (["--prompt", "w2", "--min-p", "-0.1"], ["min_p=-0.1", "greater than or equal to 0"]),
    (["--prompt", "w2", "--repetition-penalty", "0"], ["repetition_penalty=0.0", "greater than 0"]),
    (["--prompt", "w2", "--logprobs", "-1"], ["logprobs=-1", "greater than or equal to 0"]),
    (
        ["--prompt", "w2", "--speculative-config", '{"verification": "trust"}'],
        ["verification='trust'", "one of auto, block, standard, coupled"],
    ),
    (["--prompt", "w2", "--max-tokens", "0"], ["max_tokens=0"]),
    (["--prompt", "w2", "-k", "-1"], ["num_speculative_tokens=-1", "greater than or equal to 0"]),
    (["--prompt", "w2", "-k", "999"], ["num_speculative_tokens=999", "64"]),
    (["--prompt", "w2", "--speculative-config", "magic"], ["method='magic'", "ngram"]),
    (["--prompt", "w2", "--speculative-config", '{"K": 3}'], ["'K'", "num_speculative_tokens"]),
    (["--prompt", "w2", "--speculative-config", "{K: 3"], ["not valid JSON"]),
    (["--prompt", "w2", "--speculative-config", "draft_model"], ["needs 'model'"]),
    (["--prompt", "w2", "--speculative-config", "ngram", "--draft-model", "x"], ["'ngram'", "no draft model"]),
    (
        ["--prompt", "w2", "--speculative-config", '{"num_speculative_tokens": 2}', "-k", "3"],
        ["--num-speculative-tokens 3", "=2"],
    ),
    (["--prompt", "w2", "--max-model-len", "64"], ["max_model_len=64", "32"]),
    (["--prompt", "w2", "--max-model-len", "1"], ["max_model_len=1"]),
    (["--prompt", "w2", "--dtype", "int3"], ["dtype='int3'", "'float32'"]),
    (["--prompt", "w2", "--quantization", "int3"], ["quantization='int3'", "'int8'"]),
    (["--prompt", "w2", "--backend", "magic"], ["backend='magic'", "'reference'"]),
    (["--prompt", "w2", "--backend", "reference", "--quantization", "int8"], ["int8", "native"]),
    (["--prompt", "w2", "--dtype", "bfloat16", "--quantization", "int8"], ["bfloat16", "int8", "give one"]),
    (
        ["--prompt", "w2", "--speculative-config", '{"draft_vocab_size": 8}'],
        ["draft_vocab_size", "no 'model' is given"],
    ),
    (["--prompt", "w2", "--device", "warp"], ["device='warp'", "'cpu'"]),
    (["--prompt", "w2", "--stop", ""], ["stop", "must not contain an empty string"]),
    ([], ["--prompt or --prompt-file"]),
    (["--prompt-file", "/no/such/file"], ["'/no/such/file'", "No such file"]),
    (["--prompt", "w2", "--draft-model", "/no/such/model"], ["'/no/such/model'", "alias"]),
    (["--prompt", "w2", "--json", "/no/such/folder/x.json"], ["'/no/such/folder/x.json'"]),
]


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS, ids=lambda value: " ".join(value)[:40])
def test_a_bad_option_is_named_on_one_line(outrider: Any, model: str, options: list[str], words: list[str]) -> None:
    code, _, err = outrider("generate", model, *options)
    line = one_line(err)
    assert code == 2
    for word in words:
        assert word in line, line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--regex", "(a"], ["structured_outputs regex is not valid", "unclosed group"]),
        (["--json-schema", '{"type": "objekt"}'], ["structured_outputs json is not valid", "objekt"]),
        (["--grammar-file", "{lark}"], ["structured_outputs grammar is not valid"]),
    ],
)
def test_a_grammar_that_is_none_is_named_on_one_line(
    outrider: Any, smollm2_path: Path, tmp_path: Path, options: list[str], words: list[str]
) -> None:
    lark = tmp_path / "grammar.lark"
    lark.write_text("start: ???", encoding="utf-8")
    given = [option.replace("{lark}", str(lark)) for option in options]
    code, out, err = outrider("generate", str(smollm2_path), "--prompt", "x", "--max-model-len", "64", *given)
    assert (code, out) == (2, "")
    line = one_line(err)
    for word in words:
        assert word in line, line


def test_unknown_model(outrider: Any) -> None:
    code, out, err = outrider("generate", "no-such-model", "--prompt", "x")
    assert (code, out) == (2, "")
    line = one_line(err)
    assert "'no-such-model'" in line
    assert "smollm2-135m-instruct" in line, "the aliases are named"


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "0 bytes"), (b"hello, I am no model", "GGUF"), (b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, "GGUF")],
)
def test_a_file_that_is_no_gguf(outrider: Any, tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    code, _, err = outrider("generate", str(path), "--prompt", "x")
    assert code == 2
    assert "broken.gguf" in one_line(err)


@pytest.mark.model
@pytest.mark.parametrize("keep", [100, 100_000, 5_000_000, -1])
def test_a_truncated_gguf(outrider: Any, tmp_path: Path, smollm2_path: Path, keep: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(smollm2_path.read_bytes()[:keep])
    code, _, err = outrider("generate", str(path), "--prompt", "x")
    assert code == 2
    assert "cut.gguf" in one_line(err)


def test_wrong_shapes(outrider: Any, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name][:, :-1].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    code, _, err = outrider("generate", str(folder), "--prompt", "w1")
    line = one_line(err)
    assert code == 2
    assert name in line
    assert "[16, 31]" in line or "(16, 31)" in line
    assert "[16, 32]" in line or "(16, 32)" in line


def test_a_draft_with_another_vocabulary_is_refused_with_both_sizes_and_the_first_difference(
    outrider: Any, tmp_path: Path, model: str
) -> None:
    smaller = tiny_model(tmp_path / "smaller", words=17)
    speculative = json.dumps({"method": "draft_model", "model": str(smaller)})
    code, _, err = outrider("generate", model, "--prompt", "w1", "--speculative-config", speculative)
    line = one_line(err)
    assert code == 2
    for word in ("17 tokens", "20", "id 17", "'w17'", "cross_vocab"):
        assert word in line, line
    speculative = json.dumps({"method": "cross_vocab", "model": str(smaller)})
    code, _, err = outrider("generate", model, "--prompt", "w1", "--speculative-config", speculative)
    assert code == 2
    assert "byte-level or SentencePiece" in one_line(err)


def test_a_draft_with_the_same_vocabulary_is_accepted(outrider: Any, tmp_path: Path, model: str) -> None:
    same = tiny_model(tmp_path / "same", seed=1)
    plain = outrider("generate", model, "--prompt", "w3 w5", "--speculative-config", "off", "--max-tokens", "12")
    config = json.dumps({"method": "draft_model", "model": str(same)})
    drafted = outrider("generate", model, "--prompt", "w3 w5", "--speculative-config", config, "--max-tokens", "12")
    assert plain[0] == drafted[0] == 0, drafted[2]
    assert plain[1] == drafted[1]
    assert "speculation draft_model" in drafted[2]


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float32"])
def test_a_draft_may_be_quantized_and_trimmed_whatever_the_targets_dtype(
    outrider: Any, tmp_path: Path, model: str, dtype: str
) -> None:
    same = tiny_model(tmp_path / "same", seed=1)
    speculative = {"model": str(same), "quantization": "int8", "draft_vocab_size": 12}
    words = ["generate", model, "--prompt", "w3 w5", "--max-tokens", "12", "--ignore-eos", "--dtype", dtype]
    plain = outrider(*words, "--speculative-config", "off")
    drafted = outrider(*words, "--speculative-config", json.dumps(speculative))
    assert plain[0] == drafted[0] == 0, drafted[2]
    assert plain[1] == drafted[1]


def test_usage_errors_exit_with_two(outrider: Any) -> None:
    assert outrider("generate")[0] == 2
    assert outrider("no-such-command")[0] == 2
    assert outrider("generate", "x", "--no-such-option")[0] == 2


def process(*words: str, stdout: Any = subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "outrider", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["generate", "{model}", "--prompt", "w3", "--ignore-eos"]]
)
def test_a_full_disk_is_told_on_one_line(model: str, words: list[str], unbuffered: str) -> None:
    words = [word.replace("{model}", model) for word in words]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = process(*words, stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    assert one_line(done.stderr) == "outrider: error: the output can not be written: No space left on device"
    assert "Exception ignored" not in done.stderr


def test_a_stdout_that_lacks_a_character_is_told_on_one_line_and_json_is_escaped(tmp_path: Path) -> None:
    words = ["generate", str(tiny_model(tmp_path, word="é")), "--prompt", "é3 é4", "--max-tokens", "4", "--ignore-eos"]
    done = process(*words, PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    line = one_line(done.stderr)
    assert "can not be written as ascii, which lacks 'é'; set PYTHONIOENCODING=utf-8" in line
    told = process(*words, "--json", "-", PYTHONIOENCODING="ascii")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["text"].startswith("é")
    assert process(*words, PYTHONIOENCODING="utf-8").returncode == 0
