"""Tokens as bytes, and what two vocabularies share: one to one, the same bytes, ends only with ends."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from outrider.errors import VocabularyMismatchError
from outrider.models.tokenizer import Tokenizer
from outrider.models.vocabulary import Vocabulary, shared_tokens
from tests.unit.models.other_vocabularies import byte_level, sentencepiece, spelled

KINDS = {
    "byte level": byte_level(),
    "byte level with NFC": byte_level(380, nfc=True, added=("<|endoftext|>", "<|turn|>")),
    "sentencepiece": sentencepiece(),
    "sentencepiece with prefix": sentencepiece(600, prefix=True),
}
SAMPLE = "  Hello  wörld\n\n\n 東京 👩‍👩‍👧 don't 123 <eos> x"


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_a_text_say_its_bytes(kind: str) -> None:
    vocabulary = Vocabulary(KINDS[kind])
    said = [vocabulary.bytes_of(token_id) for token_id in vocabulary.encode(SAMPLE)]
    assert None not in said
    assert b"".join(text for text in said if text is not None).decode() == SAMPLE


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_say_nothing_and_ordinary_text_never_becomes_one(kind: str) -> None:
    vocabulary = Vocabulary(KINDS[kind])
    assert vocabulary.end_id in vocabulary.control
    for token_id, spelling in vocabulary.control.items():
        assert vocabulary.bytes_of(token_id) is None
        assert token_id not in vocabulary.encode(f"a{spelling}b")
        assert token_id in vocabulary.encode(f"a{spelling}b", control=True)
    assert KINDS[kind].encode("a<|turn|>")[-1:] == vocabulary.encode("<|turn|>", control=True)[-1:], "left as it was"


def test_a_space_before_every_text_is_known_and_left_out() -> None:
    plain, prefixed = Vocabulary(KINDS["sentencepiece"]), Vocabulary(KINDS["sentencepiece with prefix"])
    assert (plain.prefixed, prefixed.prefixed) == (False, True)
    assert KINDS["sentencepiece with prefix"].decode(prefixed.encode("over")) == "over"
    assert b"".join(prefixed.bytes_of(id) or b"" for id in prefixed.encode("over")) == b"over"


@pytest.mark.parametrize("draft", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_what_is_shared_is_one_to_one_and_says_the_same(draft: str, target: str) -> None:
    own, other = Vocabulary(KINDS[draft]), Vocabulary(KINDS[target])
    shared = shared_tokens(own, other)
    pairs = list(zip(shared.draft_ids.tolist(), shared.target_ids.tolist(), strict=True))
    assert len({mine for mine, _ in pairs}) == len({theirs for _, theirs in pairs}) == len(pairs)
    for mine, theirs in pairs:
        assert own.bytes_of(mine) == other.bytes_of(theirs)
        assert (mine in own.control) == (theirs in other.control)
        assert (mine == own.end_id) == (theirs == other.end_id)
    ordinary = {own.bytes_of(mine) for mine, _ in pairs} - {None}
    assert ordinary == set(own.by_bytes) & set(other.by_bytes)
    assert shared.num_ordinary == len(ordinary)
    assert 0.0 < shared.share <= 1.0


WORDS = st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=12, unique=True)


@given(draft=WORDS, target=WORDS, draft_rows=st.integers(1, 12), target_rows=st.integers(1, 12))
def test_any_two_vocabularies_share_exactly_the_strings_of_both(
    draft: list[str], target: list[str], draft_rows: int, target_rows: int
) -> None:
    own, other = Vocabulary(spelled(draft), draft_rows), Vocabulary(spelled(target), target_rows)
    shared = shared_tokens(own, other)
    found = {(draft[mine], target[theirs]) for mine, theirs in zip(shared.draft_ids, shared.target_ids, strict=True)}
    assert found == {(word, word) for word in set(draft[:draft_rows]) & set(target[:target_rows])}


def test_control_tokens_are_shared_by_name_and_ends_by_role() -> None:
    draft, target = spelled(["a", "<x>", "b"], end="<x>"), spelled(["b", "a", "<stop>"], end="<stop>")
    shared = shared_tokens(Vocabulary(draft), Vocabulary(target))
    assert dict(zip(shared.draft_ids.tolist(), shared.target_ids.tolist(), strict=True)) == {0: 1, 1: 2, 2: 0}
    assert shared.images == {2: 1}
    spoken = spelled(["<x>", "a", "b"])
    shared = shared_tokens(Vocabulary(draft), Vocabulary(spoken))
    assert sorted(shared.draft_ids.tolist()) == [0, 2], "an end and a text spelled like it are not the same"


def test_where_two_tokens_say_the_same_the_piece_stands_for_it() -> None:
    tokenizer = sentencepiece()
    vocabulary = Vocabulary(tokenizer)
    ids = tokenizer.backend.get_vocab()
    assert vocabulary.by_bytes[b"e"] == ids["e"]
    assert vocabulary.bytes_of(ids["<0x65>"]) == b"e"
    assert vocabulary.by_bytes[b"\xff"] == ids["<0xFF>"]


def test_an_unknown_kind_of_spelling_is_refused() -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}))
    with pytest.raises(VocabularyMismatchError, match=r"decoder None"):
        Vocabulary(Tokenizer(backend))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(VocabularyMismatchError, match=r"decoder 'WordPiece'"):
        Vocabulary(Tokenizer(backend))
