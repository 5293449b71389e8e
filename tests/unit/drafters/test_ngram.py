"""Prompt lookup against a slow search written from its definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.base import DraftRequest
from outrider.drafters.ngram import NGramDrafter
from outrider.request import Request
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams

NOISE = KeyedNoise(0)
DISTRIBUTION = RequestSampler(SamplingParams(), [0], vocab_size=1)


def request_of(tokens: list[int], name: str = "r") -> Request:
    return Request(name, tuple(tokens), SamplingParams(), noise_seed=0, max_total_tokens=1000)


def proposed(drafter: NGramDrafter, request: Request, k: int) -> tuple[int, ...]:
    (proposal,) = drafter.propose([DraftRequest(request, k, NOISE, DISTRIBUTION)])
    assert proposal.probs is None
    return proposal.token_ids


def by_definition(tokens: list[int], k: int, shortest: int, longest: int) -> tuple[int, ...]:
    """Longest match first, among equals the latest that something follows; periodic beyond the end."""
    for length in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                text = list(tokens)
                for _ in range(k):
                    text.append(text[end + len(text) - len(tokens)])
                return tuple(text[len(tokens) :])
    return ()


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    more=st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=6),
    k=st.integers(1, 8),
    shortest=st.integers(1, 3),
    extra=st.integers(0, 3),
)
def test_equals_the_definition_while_the_text_grows(
    tokens: list[int], more: list[list[int]], k: int, shortest: int, extra: int
) -> None:
    drafter = NGramDrafter(min_match=shortest, max_match=shortest + extra)
    request = request_of(tokens)
    for addition in [[], *more]:
        request.token_ids.extend(addition)
        assert proposed(drafter, request, k) == by_definition(request.token_ids, k, shortest, shortest + extra)


def test_examples() -> None:
    drafter = NGramDrafter(min_match=1, max_match=3)
    assert proposed(drafter, request_of([1, 2, 3, 4, 5, 1, 2, 3], "a"), 2) == (4, 5)
    assert proposed(drafter, request_of([9, 3, 7, 1, 3, 8, 5, 3], "b"), 1) == (8,), "the latest of equal matches"
    assert proposed(drafter, request_of([1, 2, 3], "c"), 4) == ()
    assert proposed(drafter, request_of([6, 6], "d"), 3) == (6, 6, 6), "a repetition goes on"


def test_requests_do_not_see_each_other_and_forget_forgets() -> None:
    drafter = NGramDrafter(min_match=1, max_match=2)
    assert proposed(drafter, request_of([1, 2, 1], "a"), 1) == (2,)
    assert proposed(drafter, request_of([5, 1], "b"), 1) == ()
    drafter.forget("a")
    assert proposed(drafter, request_of([1, 7, 1], "a"), 1) == (7,)
    drafter.forget("never seen")


@pytest.mark.parametrize(("shortest", "longest"), [(0, 2), (3, 2)])
def test_lengths_that_make_no_sense_are_refused(shortest: int, longest: int) -> None:
    with pytest.raises(ValueError, match="min_match"):
        NGramDrafter(min_match=shortest, max_match=longest)
