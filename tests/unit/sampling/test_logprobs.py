"""Log-probabilities against their definition; what is reported of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.outputs import TokenLogprobs
from outrider.sampling.logprobs import log_softmax, report
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling_params import SamplingParams

LOGITS = st.lists(st.sampled_from([-math.inf, -2.0, -1.0, 0.0, 1.5, 700.0]), min_size=1, max_size=20).filter(
    lambda values: max(values) > -math.inf
)


@given(LOGITS)
def test_log_softmax_sums_to_one(values: list[float]) -> None:
    result = log_softmax(np.array(values))
    assert np.exp(result).sum() == pytest.approx(1.0)
    assert np.array_equal(np.isneginf(result), np.isneginf(values))
    finite = [i for i, value in enumerate(values) if value > -math.inf]
    assert [result[i] - result[finite[0]] for i in finite] == pytest.approx(
        [values[i] - values[finite[0]] for i in finite]
    )


@given(LOGITS, st.integers(0, 25), st.integers(0, 19))
def test_report_equals_a_full_sort(values: list[float], num_top: int, token_id: int) -> None:
    token_id %= len(values)
    row = log_softmax(np.array(values))
    ranked = sorted(range(len(values)), key=lambda i: (-row[i], i))
    result = report(row, token_id, num_top)
    assert result.rank == 1 + ranked.index(token_id)
    assert result.logprob == row[token_id]
    assert result.top == tuple((i, row[i]) for i in ranked[:num_top] if row[i] > -math.inf)


def test_broken_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        log_softmax(np.array([0.0, math.nan]))


def test_raw_ignores_every_parameter_and_processed_follows_them() -> None:
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125]))
    settings = {"temperature": 0.5, "top_k": 2, "logit_bias": {2: 5.0}}

    def top(mode: str, **more: float) -> TokenLogprobs:
        params = SamplingParams(**{**settings, **more, "logprobs_mode": mode})  # type: ignore[arg-type]
        sampler = RequestSampler(params, [0], vocab_size=4)
        return sampler.report(row, 0, 4, [0])

    raw = top("raw")
    assert raw.top == tuple(enumerate(row.tolist()))
    processed = top("processed")
    sampler = RequestSampler(SamplingParams(**settings), [0], vocab_size=4)  # type: ignore[arg-type]
    assert [i for i, _ in processed.top] == [2, 0], "only what top-k leaves is there"
    assert [math.exp(x) for _, x in processed.top] == pytest.approx(sampler.probs(row, [0])[[2, 0]].tolist())
    greedy = top("processed", temperature=0.0)
    assert [i for i, _ in greedy.top] == [2, 0, 1, 3]
    assert greedy.top == tuple((i, float(log_softmax(sampler.edited(row, [0]))[i])) for i in (2, 0, 1, 3))
