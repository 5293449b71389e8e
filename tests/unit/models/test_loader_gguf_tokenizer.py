"""Tokenizers converted from GGUF files, and the cache they are kept in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.errors import ModelFormatError
from outrider.models.loader import gguf_tokenizer
from outrider.models.loader.gguf_file import GGUFFile
from outrider.models.tokenizer import Tokenizer

Write = Callable[..., Path]


def load(path: Path) -> Tokenizer:
    return gguf_tokenizer.load_tokenizer(GGUFFile(path))


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(id) for id in tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["2", "0", "2", "0", " ", "2", "0"]),
        ("gpt-2", ["20", "20", " ", "20"]),
        ("qwen2", ["2", "0", "2", "0", " ", "2", "0"]),
        ("llama-bpe", ["20", "2", "0", " ", "20"]),
    ],
)
def test_numbers_are_split_as_the_pre_tokenizer_says(write_gguf: Write, pre: str, expected: list[str]) -> None:
    # "2 0" is a merge: 2020 is one piece for gpt-2, 202 and 0 for llama-bpe, single digits for the others.
    made = load(write_gguf(metadata={"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False}))
    assert tokens(made, "2020 20") == expected


@pytest.mark.parametrize("pre", gguf_tokenizer.PRE_TOKENIZERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(text=st.text(st.characters(max_codepoint=0x2FF)))
def test_text_comes_back(write_gguf: Write, pre: str, text: str) -> None:
    made = load(write_gguf(metadata={"tokenizer.ggml.pre": pre}))
    assert made.decode(made.encode(text)) == text


@pytest.mark.parametrize("pre", ["default", "tekken", None])
def test_other_pre_tokenizers_are_refused(write_gguf: Write, pre: str | None) -> None:
    with pytest.raises(ModelFormatError, match=f"pre-tokenizer {pre!r} is not supported.*smollm"):
        load(write_gguf(metadata={"tokenizer.ggml.pre": pre}))


def test_composed_characters_are_normalized_for_qwen2_only(write_gguf: Write) -> None:
    decomposed = "e\u0301"
    for pre, expected in {"qwen2": "\u00e9", "smollm": decomposed}.items():
        made = load(write_gguf(metadata={"tokenizer.ggml.pre": pre}))
        assert made.decode(made.encode(decomposed)) == expected


@pytest.mark.parametrize(
    ("pre", "flag", "starts"),
    [("smollm", None, False), ("smollm", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False)],
)
def test_a_start_token_is_added_where_the_file_wants_one(
    write_gguf: Write, pre: str, flag: bool | None, starts: bool
) -> None:
    made = load(write_gguf(metadata={"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": flag}))
    assert tokens(made, "hello") == ["<|im_start|>"] * starts + ["hello"]
    assert made.encode("hello", add_special_tokens=False) == made.encode("hello")[starts:]


def test_special_tokens_of_the_file(write_gguf: Write, vocabulary: list[str]) -> None:
    listed = [*vocabulary, "<think>", "[PAD268]", "[PAD269]"]
    types = [3, 3, 3] + [1] * (len(vocabulary) - 3) + [4, 5, 5]
    made = load(write_gguf(metadata={"tokenizer.ggml.tokens": listed, "tokenizer.ggml.token_type": types}))
    assert made.special_ids == {0, 1, 2}
    assert (made.bos_token_id, made.eos_token_ids) == (1, (2, 0))
    assert tokens(made, "<think>hello") == ["<think>", "hello"]
    assert made.decode(made.encode("<think>")) == "<think>"
    assert made.vocab_size == len(vocabulary) + 1
    assert made.token_text(len(vocabulary) + 1) == ""


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"tokenizer.ggml.model": "bert"}, "tokenizer 'bert' is not supported; supported are: gpt2, llama"),
        ({"tokenizer.ggml.model": None}, "tokenizer None is not supported"),
        ({"tokenizer.ggml.tokens": None}, "token list is missing or damaged"),
        ({"tokenizer.ggml.token_type": [1]}, "token list is missing or damaged"),
        ({"tokenizer.ggml.merges": ["h", "e l"]}, "merge 'h' is not two tokens"),
        ({"tokenizer.ggml.merges": ["h zz"]}, "vocabulary and merges do not fit together"),
        ({"tokenizer.ggml.bos_token_id": 100000, "tokenizer.ggml.add_bos_token": True}, "bos_token_id=100000"),
    ],
)
def test_what_is_damaged_is_named(write_gguf: Write, metadata: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said) as caught:
        load(write_gguf(metadata=metadata))
    assert "\n" not in str(caught.value)


def test_a_token_listed_twice_is_refused(write_gguf: Write, vocabulary: list[str]) -> None:
    types = [1] * (len(vocabulary) + 1)
    metadata = {"tokenizer.ggml.tokens": [*vocabulary, "a"], "tokenizer.ggml.token_type": types}
    with pytest.raises(ModelFormatError, match="lists a token twice"):
        load(write_gguf(metadata=metadata))


def test_sentencepiece(write_gguf: Write) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "hi", "▁hi"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [0.0] * 259 + [-4.0, -5.0, -6.0, -1.0, -2.0],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 5,
        "tokenizer.ggml.merges": None,
        "llama.vocab_size": len(pieces),
    }
    made = load(write_gguf(metadata=metadata))
    assert made.encode("hi hi", add_special_tokens=False) == [pieces.index("▁hi")] * 2
    assert made.decode(made.encode("hi é")) == "hi é"


def test_a_second_start_takes_the_converted_tokenizer(
    write_gguf: Write, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf()
    first = load(path)
    monkeypatch.setattr(gguf_tokenizer, "_build", lambda file: pytest.fail("converted again"))
    second = load(path)
    assert second.fingerprint == first.fingerprint
    assert second.encode("hello 2024 <|im_end|>") == first.encode("hello 2024 <|im_end|>")
    assert second.special_ids == first.special_ids
    assert len(list((cache / "tokenizers").iterdir())) == 1


@pytest.mark.parametrize(
    "damage", [lambda body: body[:-100], lambda body: body[:100] + b"x" + body[101:], lambda _: b""]
)
def test_a_damaged_cache_is_rebuilt(write_gguf: Write, cache: Path, damage: Callable[[bytes], bytes]) -> None:
    path = write_gguf()
    expected = load(path).encode("hello")
    (kept,) = (cache / "tokenizers").iterdir()
    good = kept.read_bytes()
    kept.write_bytes(damage(good))
    assert load(path).encode("hello") == expected
    assert kept.read_bytes() == good


def test_files_that_differ_in_their_tokenizer_do_not_share_the_cache(write_gguf: Write) -> None:
    assert tokens(load(write_gguf()), "20") == ["2", "0"]
    assert tokens(load(write_gguf(metadata={"tokenizer.ggml.pre": "gpt-2"})), "20") == ["20"]


def test_a_cache_that_cannot_be_written_is_done_without(
    write_gguf: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file" / "below"))
    assert tokens(load(write_gguf()), "hello") == ["hello"]
