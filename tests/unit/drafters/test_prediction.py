"""Following a prediction: exactly, with changed, missing and added pieces, after preemption."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.base import DraftRequest
from outrider.drafters.prediction import PredictionDrafter
from outrider.errors import InvalidRequestError
from outrider.request import Request
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams
from tests.toy import scripted
from tests.unit.engine.helpers import run, toy_engine

NOISE = KeyedNoise(0)
DISTRIBUTION = RequestSampler(SamplingParams(), [0], vocab_size=1)
PREDICTION = list(range(10, 40))


def request_of(prediction: list[int], output: list[int] = []) -> Request:  # noqa: B006 (not changed)
    params = SamplingParams()
    request = Request("r", (1, 2), params, noise_seed=0, max_total_tokens=1000, prediction_token_ids=tuple(prediction))
    request.token_ids += output
    return request


def proposed(drafter: PredictionDrafter, request: Request, k: int = 3) -> tuple[int, ...]:
    (proposal,) = drafter.propose([DraftRequest(request, k, NOISE, DISTRIBUTION)])
    assert proposal.probs is None
    return proposal.token_ids


def test_it_begins_with_the_prediction_and_ends_with_it() -> None:
    drafter, request = PredictionDrafter(), request_of([7, 8, 9])
    assert proposed(drafter, request) == (7, 8, 9)
    request.token_ids += [7, 8]
    assert proposed(drafter, request) == (9,)
    request.token_ids += [9]
    assert proposed(drafter, request) == ()


@pytest.mark.parametrize(
    ("said", "next_tokens"),
    [
        ([10, 11, 99], (13, 14, 15)),
        ([10, 11, 99, 13], (14, 15, 16)),
        ([10, 11, 15, 16], (17, 18, 19)),
        ([10, 11, 97, 98, 99, 12], (13, 14, 15)),
        ([10, 11, 97, 98, 99, 12, 13], (14, 15, 16)),
        ([10, 11, 12, 13, 10, 11], (12, 13, 14)),
    ],
    ids=["one changed", "after one changed", "some left out", "three added", "after three added", "said again"],
)
def test_it_comes_back_after_a_divergence(said: list[int], next_tokens: tuple[int, ...]) -> None:
    drafter, request = PredictionDrafter(), request_of(PREDICTION)
    for token in said:
        proposed(drafter, request)
        request.token_ids.append(token)
    assert proposed(drafter, request) == next_tokens
    drafter.forget("r")
    assert proposed(drafter, request) == next_tokens, "the place depends on the tokens alone"


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=20), st.integers(1, 5))
def test_whatever_is_said_a_draft_is_a_piece_of_the_prediction(prediction: list[int], said: list[int], k: int) -> None:
    draft = list(proposed(PredictionDrafter(), request_of(prediction, said), k))
    assert len(draft) <= k
    assert any(prediction[at : at + len(draft)] == draft for at in range(len(prediction) + 1))


def test_a_request_without_a_prediction_gets_no_drafts() -> None:
    assert proposed(PredictionDrafter(), request_of([])) == ()


def test_in_an_engine_a_right_prediction_saves_passes_and_a_wrong_one_changes_nothing() -> None:
    script = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
    distribution = scripted(10, script, prompt_len=2)

    def run_with(prediction: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        params = SamplingParams(temperature=0.0, max_tokens=16, prediction=prediction)
        (output,) = run(toy_engine(distribution, PredictionDrafter(), vocab_size=10), [[0, 1]], params)
        return output.outputs[0].token_ids, output.metrics.speculative_decoding.num_steps

    plain, steps = run_with(())
    assert (plain, steps) == (tuple(script), 16)
    assert run_with(tuple(script)) == (plain, 4)
    wrong, _ = run_with((0,) * 16)
    assert wrong == plain


def test_predictions_that_do_not_fit_are_refused() -> None:
    engine = toy_engine(scripted(10, [1], prompt_len=1), PredictionDrafter(), vocab_size=10)
    with pytest.raises(InvalidRequestError, match="prediction holds token id 10"):
        engine.add_request("a", [0], SamplingParams(prediction=(3, 10)))
    with pytest.raises(InvalidRequestError, match="needs a tokenizer"):
        engine.add_request("a", [0], SamplingParams(prediction="text"))
    assert not engine.has_requests
