"""The suffix index against a slow search and growth written from their definition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import native

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")

Draft = tuple[list[int], list[float]]


def index_of(*texts: Sequence[int], limit: int = 1 << 16) -> Any:
    index = native.library.SuffixIndex(limit)
    for number, text in enumerate(texts):
        if number:
            index.end_text()
        index.extend(list(text))
    return index


def matches_of(texts: Sequence[Sequence[int]], tail: Sequence[int]) -> list[tuple[int, int, int]]:
    """(text, place of what followed, length) of every match of ``tail``."""
    found = []
    for number, text in enumerate(texts):
        for place in range(1, len(text)):
            length = 0
            while length < min(place, len(tail)) and text[place - 1 - length] == tail[-1 - length]:
                length += 1
            if length:
                found.append((number, place, length))
    return found


def grown(
    texts: Sequence[Sequence[int]], tail: Sequence[int], least: int, own: bool, count: int, floor: float
) -> Draft:
    """The most frequent next token, of equals the latest. A match at its own text's end goes on as drafted."""
    places = [(number, place) for number, place, length in matches_of(texts, tail) if length >= least]
    offset = [sum(len(text) + 1 for text in texts[:number]) for number in range(len(texts))]
    tokens: list[int] = []
    chances: list[float] = []
    while len(tokens) < count:
        following: dict[int, list[tuple[int, int]]] = {}
        for number, place in places:
            text = texts[number]
            if place < len(text):
                following.setdefault(text[place], []).append((number, place + 1))
            elif own and number == len(texts) - 1 and place - len(text) < len(tokens):
                following.setdefault(tokens[place - len(text)], []).append((number, place + 1))
        if not following:
            break

        def rank(token: int, following: dict[int, list[tuple[int, int]]] = following) -> tuple[int, int]:
            return len(following[token]), max(offset[number] + place for number, place in following[token])

        token = max(following, key=rank)
        before = chances[-1] if chances else 1.0
        chance = before * len(following[token]) / (len(places) + 1 / (least + len(tokens)))
        if chance < floor:
            break
        tokens.append(token)
        chances.append(chance)
        places = following[token]
    return tokens, chances


def by_definition(
    texts: Sequence[Sequence[int]],
    tail: Sequence[int],
    own: bool,
    count: int,
    *,
    min_match: int = 1,
    floor: float = 0.0,
) -> float:
    """The expected number of accepted tokens of the set of matches that promises the most."""
    lengths = [length for _, _, length in matches_of(texts, tail) if length >= min_match]
    if not lengths or count < 1:
        return 0.0
    longest = min(max(lengths), 64)
    sets = [longest, *(gram for gram in (8, 4, 2, 1) if min_match <= gram < longest)]
    return max(sum(grown(texts, tail, least, own, count, floor)[1]) for least in sets)


def check_consistent(
    draft: Draft, texts: Sequence[Sequence[int]], tail: Sequence[int], own: bool, min_match: int
) -> None:
    """The draft follows from some match that is long enough, and its chances fall."""
    tokens, chances = draft
    assert len(tokens) == len(chances)
    assert all(0.0 < later <= chance <= 1.0 for chance, later in pairwise([1.0, *chances]))
    if not tokens:
        return
    wanted = [*tail[-min_match:], *tokens]
    found = [[*text, *(tokens if own and number == len(texts) - 1 else [])] for number, text in enumerate(texts)]
    assert any(
        text[at : at + len(wanted)] == wanted
        for number, text in enumerate(found)
        for at in range(len(texts[number]) - min_match)
    )


TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=15)
OPTIONS = {
    "min_match": st.integers(1, 3),
    "floor": st.sampled_from([0.0, 0.1, 0.3]),
}


@settings(max_examples=300)
@given(text=TEXT, count=st.integers(0, 8), options=st.fixed_dictionaries(OPTIONS))
def test_what_follows_the_text_itself(text: list[int], count: int, options: dict[str, Any]) -> None:
    draft = index_of(text).propose(count, **options)
    assert len(draft[0]) <= count
    assert sum(draft[1]) == pytest.approx(by_definition([text], text, True, count, **options))
    check_consistent(draft, [text], text, True, options["min_match"])


@settings(max_examples=300)
@given(
    texts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=7), min_size=1, max_size=2),
    tail=TEXT,
    count=st.integers(0, 8),
    options=st.fixed_dictionaries(OPTIONS),
)
def test_what_follows_another_text(
    texts: list[list[int]], tail: list[int], count: int, options: dict[str, Any]
) -> None:
    draft = index_of(*texts).propose_after(tail, count, **options)
    assert sum(draft[1]) == pytest.approx(by_definition(texts, tail, False, count, **options))
    check_consistent(draft, texts, tail, False, options["min_match"])


@settings(max_examples=100)
@given(text=st.lists(st.integers(0, 5), min_size=1, max_size=60), limit=st.integers(1, 12), pieces=st.integers(1, 4))
def test_a_full_index_has_forgotten_the_oldest_tokens(text: list[int], limit: int, pieces: int) -> None:
    index = native.library.SuffixIndex(limit)
    for first in range(0, len(text), pieces):
        index.extend(text[first : first + pieces])
    assert index.size == min(len(text), limit)
    kept = text[-limit:]
    assert sum(index.propose(4)[1]) == pytest.approx(by_definition([kept], kept, True, 4))


def test_growing_keeps_every_text() -> None:
    texts = [[(7 * place * place + number) % 251 + 300 * number for place in range(900)] for number in range(6)]
    index = index_of(*texts)
    for text in texts:
        tokens, chances = index.propose_after(text[100:180], 8)
        assert tokens == text[180:188]
        assert chances[0] == pytest.approx(3 / (3 + 1 / 64)), "texts repeat after 251 tokens; 64 is the longest match"
    assert index.nbytes < 40 * 8192


def test_frequent_beats_recent_and_recent_breaks_ties() -> None:
    assert index_of([9, 1, 9, 1, 9, 2, 9]).propose(1)[0] == [1]
    assert index_of([9, 1, 9, 2, 9]).propose(1)[0] == [2]


def test_bad_arguments_are_refused() -> None:
    library = native.library
    with pytest.raises(ValueError, match="limit=0"):
        library.SuffixIndex(0)
    index = library.SuffixIndex(8)
    with pytest.raises(ValueError, match="-3 is negative"):
        index.extend([1, -3])
    assert index.size == 0
    for options in ({"min_match": 0}, {"floor": 1.5}, {"floor": float("nan")}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}="):
            index.propose(4, **options)
    with pytest.raises(ValueError, match="max_tokens=-1"):
        index.propose(-1)
