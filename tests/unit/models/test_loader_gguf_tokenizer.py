"""Tokenizers converted from GGUF files, and the cache they are kept in."""

from __future__ import annotations

import itertools
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


SPM_CONTROL = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
SPM_WORDS = ["\u2581", *"abcdehilnor", "ab", "he", "ll", "llo", "hello", "\u2581he", "\u2581hello", "bc", "\u2581ab"]


def sentencepiece(**changes: Any) -> dict[str, Any]:
    """Metadata as Gemma's files have it: spaces as tokens of their own, words best first, single letters last."""
    pieces = ["<unk>", *SPM_CONTROL, "\n", "\n\n", "  ", "   ", *(f"<0x{byte:02X}>" for byte in range(256)), *SPM_WORDS]
    words = sorted(SPM_WORDS, key=len, reverse=True)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [-1000.0] * (len(pieces) - len(words)) + [-float(words.index(w)) for w in SPM_WORDS],
        "tokenizer.ggml.token_type": [2] + [3] * 5 + [4] * 4 + [6] * 256 + [1] * len(words),
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.bos_token_id": 3,
        "tokenizer.ggml.eos_token_id": 2,
        "llama.vocab_size": len(pieces),
        **changes,
    }


def test_sentencepiece_with_a_space_before_the_text(write_gguf: Write) -> None:
    made = load(write_gguf(metadata=sentencepiece()))
    assert [made.backend.id_to_token(id) for id in made.encode("hello ab")] == ["<bos>", "\u2581hello", "\u2581ab"]
    assert made.decode(made.encode("hello \u00e9")) == "hello \u00e9"
    assert made.special_ids == set(range(6))
    assert made.eos_token_ids == (2, 5)


def test_sentencepiece_without(write_gguf: Write) -> None:
    made = load(write_gguf(metadata=sentencepiece(**{"tokenizer.ggml.add_space_prefix": False})))
    text = "<start_of_turn>hello   abc  hello\n\nab<end_of_turn>\n"
    found = [made.backend.id_to_token(id) for id in made.encode(text)]
    turn = [
        "<start_of_turn>",
        "hello",
        "\u2581\u2581\u2581",
        "ab",
        "c",
        "\u2581\u2581",
        "hello",
        "\n\n",
        "ab",
        "<end_of_turn>",
        "\n",
    ]
    assert found == ["<bos>", *turn]
    assert made.decode(made.encode(text), skip_special_tokens=False) == "<bos>" + text
    assert made.encode("hello", add_special_tokens=False) == made.encode("hello")[1:]
    bare = load(write_gguf(metadata=sentencepiece(**{"tokenizer.ggml.add_bos_token": False})))
    assert bare.encode("hello")[0] != 3


BARE = sentencepiece(**{"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(text=st.text(st.sampled_from("abcdehlor \n\t\u00e9\U0001f389<")))
def test_sentencepiece_gives_text_back(write_gguf: Write, text: str) -> None:
    made = load(write_gguf(metadata=BARE))
    assert made.decode(made.encode(text)) == text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(text=st.text(st.sampled_from("abcehlo"), min_size=3))
def test_sentencepiece_joins_the_pieces_that_score_best(write_gguf: Write, text: str) -> None:
    made = load(write_gguf(metadata=BARE))
    scores = dict(zip(BARE["tokenizer.ggml.tokens"], BARE["tokenizer.ggml.scores"], strict=True))
    assert [made.token_text(id) for id in made.encode(text)] == joined_by_score(text, scores)


def joined_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's own rule, said plainly: join the neighbours whose piece scores best, leftmost first."""
    parts = list(text)
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in scores]
        if not pairs:
            return parts
        at = min(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@pytest.mark.parametrize("scores", [None, [0.0], "x"])
def test_sentencepiece_without_scores_is_damaged(write_gguf: Write, scores: Any) -> None:
    with pytest.raises(ModelFormatError, match="scores is missing or damaged"):
        load(write_gguf(metadata=sentencepiece(**{"tokenizer.ggml.scores": scores})))


def test_sentencepiece_is_what_transformers_makes_of_it(write_gguf: Write) -> None:
    from transformers import AutoTokenizer

    path = write_gguf(metadata=sentencepiece())
    other = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    made = load(path)
    for text in ("hello", "hello ab c", " hello", "abc\n\nhello<end_of_turn> ab", "\u00e9 \U0001f389", ""):
        assert made.encode(text) == other.encode(text).ids, text


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
