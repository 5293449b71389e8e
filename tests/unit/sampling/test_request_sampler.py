"""What edits a row of logits: against the oracle's definitions, in the right order, at every place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import InvalidRequestError
from outrider.sampling.noise import Weights
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling_params import SamplingParams
from outrider.verification.oracle import edited_logits, processed_probs

VOCAB = 6
ENDS = frozenset({4, 5})
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=5)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -1.0]),
    presence_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -0.5, 2.0]), max_size=3),
    allowed_token_ids=st.sampled_from([None, (0, 1, 2, 4), (3, 0)]),
    bad_token_ids=st.sampled_from([(), (1,), ((0, 3),), ((2, 2, 2), 4)]),
    min_tokens=st.integers(0, 3),
)


def edited(params: SamplingParams, row: Weights, prompt: list[int], output: list[int], num_drafted: int) -> Weights:
    sampler = RequestSampler(params, prompt, vocab_size=VOCAB, end_token_ids=ENDS)
    split = len(output) - min(num_drafted, len(output))
    return sampler.edited(row, prompt + output[:split], output[split:])


@settings(max_examples=150)
@given(PARAMS, TOKENS, TOKENS, st.integers(0, 3), st.integers(0, 2**32))
def test_edits_equal_the_definitions(
    params: SamplingParams, prompt: list[int], output: list[int], num_drafted: int, seed: int
) -> None:
    row = 3.0 * np.random.default_rng(seed).standard_normal(VOCAB)
    before = row.copy()
    result = edited(params, row, prompt, output, num_drafted)
    assert np.allclose(result, edited_logits(row, params, prompt, output, ENDS), rtol=1e-12, atol=1e-12)
    assert np.array_equal(row, before), "the model's logits were changed in place"


@settings(max_examples=60)
@given(PARAMS, TOKENS, TOKENS, st.integers(0, 2**32))
def test_a_place_has_the_same_bits_whether_it_is_reached_by_drafts_or_by_steps(
    params: SamplingParams, prompt: list[int], output: list[int], seed: int
) -> None:
    rows = np.random.default_rng(seed).standard_normal((len(output) + 1, VOCAB))
    drafted = RequestSampler(params, prompt, vocab_size=VOCAB, end_token_ids=ENDS)
    stepped = RequestSampler(params, prompt, vocab_size=VOCAB, end_token_ids=ENDS)
    drafted.edited(rows[0], prompt, [(token + 1) % VOCAB for token in output])  # and back again
    for place, row in enumerate(rows):
        one = drafted.edited(row, prompt, output[:place])
        other = stepped.edited(row, prompt + output[:place])
        assert one.tobytes() == other.tobytes()


def test_probs_and_greedy_token_use_the_edited_row() -> None:
    row = np.array([3.0, 2.0, 1.0, 0.0, 0.0, 0.0])
    params = SamplingParams(temperature=0.7, top_k=2, bad_token_ids=((0,),))
    sampler = RequestSampler(params, [1], vocab_size=VOCAB)
    masked = np.where(np.arange(VOCAB) == 0, -np.inf, row)
    assert np.allclose(sampler.probs(row, [1]), processed_probs(masked, params))
    assert sampler.greedy_token(row, [1]) == 1
    assert sampler.edits


def test_nothing_to_edit_leaves_the_very_row() -> None:
    row = np.zeros(VOCAB)
    sampler = RequestSampler(
        SamplingParams(temperature=0.3, top_p=0.5, min_p=0.1), [1], vocab_size=VOCAB, end_token_ids=ENDS
    )
    assert not sampler.edits
    assert sampler.edited(row, [1]) is row


def test_order_of_the_edits() -> None:
    row = np.array([1.0, 1.0, -1.0, 0.0, 0.0, 0.0])
    # Bias comes before the penalty: 1 + 1 is halved, and -1 - 1 doubled.
    params = SamplingParams(logit_bias={0: 1.0, 2: -1.0}, repetition_penalty=2.0, frequency_penalty=1.0)
    assert edited(params, row, [0, 2], [0], 0)[:3].tolist() == [0.0, 1.0, -4.0]
    # A bias does not bring a forbidden token back, nor an end token before its time.
    params = SamplingParams(logit_bias={4: 100.0, 1: 100.0}, bad_token_ids=((1,),), min_tokens=2)
    assert edited(params, row, [0], [0], 1)[[1, 4]].tolist() == [-math.inf, -math.inf]
    assert edited(params, row, [0], [0, 0], 1)[[1, 4]].tolist() == [-math.inf, 100.0]


def test_a_bad_sequence_is_found_across_prompt_output_and_drafts() -> None:
    params = SamplingParams(bad_token_ids=((1, 2, 3),))
    for prompt, output, num_drafted in (
        ([1, 2], [], 0),
        ([1], [2], 0),
        ([1], [2], 1),
        ([0], [1, 2], 1),
        ([0], [1, 2], 2),
    ):
        assert np.isneginf(edited(params, np.zeros(VOCAB), prompt, output, num_drafted)).tolist().index(True) == 3
    assert not np.isneginf(edited(params, np.zeros(VOCAB), [2], [1], 1)).any()
    assert not np.isneginf(edited(params, np.zeros(VOCAB), [2], [], 0)).any(), "shorter than the sequence"


def test_words_are_ruled_out_beside_ids() -> None:
    sampler = RequestSampler(SamplingParams(bad_token_ids=((0,),)), [1], vocab_size=VOCAB, bad_sequences=[[2], [1, 3]])
    assert np.flatnonzero(np.isneginf(sampler.edited(np.zeros(VOCAB), [1]))).tolist() == [0, 2, 3]


def test_processors_see_all_tokens_and_come_last() -> None:
    seen: list[tuple[tuple[int, ...], list[float]]] = []

    def processor(token_ids: tuple[int, ...], row: Weights) -> Weights:
        seen.append((token_ids, row.tolist()))
        row[0] = 9.0
        return row

    params = SamplingParams(logits_processors=(processor, processor), logit_bias={1: 2.0})
    sampler = RequestSampler(params, [3, 4], vocab_size=VOCAB)
    row = np.zeros(VOCAB)
    assert sampler.edited(row, [3, 4, 5], [1]).tolist() == [9.0, 2.0, 0.0, 0.0, 0.0, 0.0]
    assert seen == [((3, 4, 5, 1), [0.0, 2.0, 0, 0, 0, 0]), ((3, 4, 5, 1), [9.0, 2.0, 0, 0, 0, 0])]
    assert not row.any()


def _raises(token_ids: tuple[int, ...], row: Weights) -> Weights:
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (_raises, "'_raises' failed: KeyError: 'no such thing'"),
        (lambda token_ids, row: None, "returned nothing"),
        (lambda token_ids, row: row[:2], r"shape \(2,\), not \(6,\)"),
        (lambda token_ids, row: row * np.nan, "not finite"),
    ],
)
def test_a_processor_that_fails_is_named(processor: Any, words: str) -> None:
    sampler = RequestSampler(SamplingParams(logits_processors=(processor,)), [1], vocab_size=VOCAB)
    with pytest.raises(ValueError, match=words):
        sampler.probs(np.ones(VOCAB), [1])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_row_is_found_even_where_a_mask_would_hide_it(value: float) -> None:
    sampler = RequestSampler(SamplingParams(temperature=0.0, allowed_token_ids=(1,)), [1], vocab_size=VOCAB)
    with pytest.raises(ValueError, match="not finite"):
        sampler.greedy_token(np.array([value, 1.0, 0, 0, 0, 0]), [1])


@pytest.mark.parametrize(
    ("settings", "param", "words"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias", "token id 6, but ids go from 0 to 5"),
        ({"allowed_token_ids": (0, 77)}, "allowed_token_ids", "77"),
        ({"bad_token_ids": ((0, 9),)}, "bad_token_ids", "9"),
        ({"allowed_token_ids": (0,), "bad_token_ids": (0,)}, "allowed_token_ids", "leave no token"),
        ({"allowed_token_ids": (4, 5), "min_tokens": 1}, "allowed_token_ids", "leave no token"),
    ],
)
def test_what_can_not_be_served_is_refused(settings: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        RequestSampler(SamplingParams(**settings), [1], vocab_size=VOCAB, end_token_ids=ENDS)
    assert caught.value.param == param
