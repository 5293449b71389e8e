"""Text said in another vocabulary as it grows equals the whole text said at once, and only its end is looked at."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.models.retokenizer import Retokenizer
from outrider.models.tokenizer import Tokenizer
from outrider.models.vocabulary import Vocabulary, shared_tokens
from tests.unit.models.other_vocabularies import TEXTS, byte_level, sentencepiece, spelled

KINDS = {
    "byte level": byte_level(),
    "byte level with NFC": byte_level(380, nfc=True, added=("<|endoftext|>", "<|turn|>")),
    "sentencepiece": sentencepiece(),
    "sentencepiece with prefix": sentencepiece(600, prefix=True),
}
VOCABULARIES = {kind: Vocabulary(tokenizer) for kind, tokenizer in KINDS.items()}
PAIRS = [(source, own) for source in KINDS for own in KINDS if source != own]
LONG = (
    " leading space and   runs  of    spaces\n\n\n    indented\n  \n\t\ttabs 我喜歡吃蘋果，東京は日本の首都です。"
    " e\u0301 cafe\u0301 👩‍👩‍👧👍🏽 don't we'll 'tis 1234567 <eos> <|end|> <bos> !!!??...\n"
    + "\n".join(TEXTS)
    + " " * 40
    + "end"
)


def follow(source: str, own: str) -> Retokenizer:
    images = shared_tokens(VOCABULARIES[own], VOCABULARIES[source]).images
    return Retokenizer(VOCABULARIES[source], VOCABULARIES[own], images)


def said(text: Retokenizer) -> list[int]:
    tokens = text.tokens()
    assert tokens is not None
    return [*tokens[0], *tokens[1]]


def at_once(source: str, own: str, token_ids: list[int]) -> list[int]:
    text = follow(source, own)
    text.update(token_ids)
    return said(text)


def expected(own: str, text: str) -> list[int]:
    """What the own tokenizer makes of a whole text in which nothing is a control token."""
    vocabulary = VOCABULARIES[own]
    prefix = " " if vocabulary.prefixed else ""
    return [*vocabulary.start_ids, *vocabulary.encode(prefix + text)]


@pytest.mark.parametrize(("source", "own"), PAIRS)
@pytest.mark.parametrize("seed", range(3))
def test_fifty_rounds_equal_the_whole_text_at_once(source: str, own: str, seed: int) -> None:
    generator = random.Random(seed)
    token_ids = [*VOCABULARIES[source].start_ids, *VOCABULARIES[source].encode(LONG * 2)]
    text, read = follow(source, own), 1
    for _ in range(50):
        read = min(read + generator.randint(1, len(token_ids) // 25), len(token_ids))
        before = said(text)
        kept = text.update(token_ids[:read])
        now = said(text)
        assert now == at_once(source, own, token_ids[:read])
        assert now[:kept] == before[:kept]
        assert now.count(2) == 1 or own.startswith("byte"), "one start token"
    text.update(token_ids)
    whole = LONG * 2
    if VOCABULARIES[source].prefixed:
        token_ids = [*VOCABULARIES[source].start_ids, *VOCABULARIES[source].encode(" " + whole)]
        text = follow(source, own)
        for stop in range(1, len(token_ids) + 1):
            text.update(token_ids[:stop])
    if "NFC" not in source:
        assert said(text) == expected(own, whole)


@pytest.mark.parametrize(("source", "own"), PAIRS)
@given(data=st.data())
def test_any_tokens_in_any_steps_equal_all_at_once(source: str, own: str, data: st.DataObject) -> None:
    """Token streams that no tokenizer would make: broken characters, control tokens anywhere, ids without a token."""
    size = max(KINDS[source].tokens) + 3
    token_ids = data.draw(st.lists(st.integers(0, size), max_size=60))
    text, read = follow(source, own), 0
    before = said(text)
    while read < len(token_ids):
        read = min(read + data.draw(st.integers(1, 7)), len(token_ids))
        kept = text.update(token_ids[:read])
        now = said(text)
        assert now == at_once(source, own, token_ids[:read])
        assert now[:kept] == before[:kept]
        before = now


@pytest.mark.parametrize(("source", "own"), PAIRS)
def test_the_work_of_a_step_does_not_grow_with_the_text(source: str, own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = follow(source, own)
    token_ids = [*VOCABULARIES[source].encode(LONG * 30)]
    text.update(token_ids[:-50])
    sizes: list[int] = []
    encode = VOCABULARIES[own].encode

    def measured(piece: str) -> list[int]:
        sizes.append(len(piece))
        return encode(piece)

    monkeypatch.setattr(VOCABULARIES[own], "encode", measured)
    for stop in range(len(token_ids) - 49, len(token_ids) + 1):
        assert len(said(text)) - text.update(token_ids[:stop]) <= 64
    assert 0 < max(sizes) < 1000 < len(LONG) * 3


def test_control_tokens_become_their_images_or_are_written_out() -> None:
    source, own = KINDS["byte level"], KINDS["sentencepiece"]
    end, turn = source.encode("<|end|><|turn|>")
    tokens = [*source.encode("hello "), end, *source.encode("a"), turn, *source.encode("b<eos>")]
    found = at_once("byte level", "sentencepiece", tokens)
    encode = VOCABULARIES["sentencepiece"].encode
    assert found == [2, *encode("hello "), 1, *encode("a<|turn|>b<eos>")]
    assert found.count(1) == 1, "ordinary text that is spelled like an end ends nothing"
    assert own.decode(found) == "hello a<|turn|>b<eos>"


def test_the_start_of_the_source_is_left_out_and_its_prefix_too() -> None:
    source = KINDS["sentencepiece with prefix"]
    tokens = source.encode("over the dog")
    assert tokens[0] == 2
    found = at_once("sentencepiece with prefix", "byte level", tokens)
    assert found == KINDS["byte level"].encode("over the dog")


def test_a_character_that_is_not_complete_is_said_byte_by_byte() -> None:
    text = follow("byte level", "sentencepiece")
    source = [VOCABULARIES["byte level"].by_bytes[bytes([byte])] for byte in "a東".encode()]
    own = KINDS["sentencepiece"].backend.get_vocab()
    text.update(source[:3])
    assert text.in_character
    assert text.tokens() == ([2, own["a"]], [own["<0xE6>"], own["<0x9D>"]])
    text.update(source)
    assert not text.in_character
    assert said(text) == [2, *VOCABULARIES["sentencepiece"].encode("a東")]


def test_text_that_cannot_be_said_is_not_said_wrongly() -> None:
    few: Tokenizer = spelled(["a", "b", "ab"], merges=[("a", "b")])
    own = Vocabulary(few)
    source = VOCABULARIES["byte level"]
    text = Retokenizer(source, own, {})
    text.update(source.encode("abba"))
    assert text.tokens() == ([2, 1, 0], [])
    text.update([*source.encode("abba"), *source.encode("x")])
    assert text.tokens() is None
