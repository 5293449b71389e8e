"""Log-probabilities of a run with drafts are the bits of the plain run's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from outrider.outputs import RequestOutput
from outrider.sampling_params import SamplingParams
from tests.unit.engine.every_drafter import DISTRIBUTION, DRAFTERS, PROMPTS, VOCAB
from tests.unit.engine.helpers import drain, run, toy_engine
from tests.unit.engine.test_parameters import ENDS

MODES = ["raw", "processed"]
HOWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy with penalties": {"temperature": 0.0, "repetition_penalty": 1.4, "frequency_penalty": 0.5},
    "seeded": {"seed": 4, "temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.7},
}


def reported(outputs: list[RequestOutput]) -> list[Any]:
    return [(out.outputs[0].token_ids, out.outputs[0].logprobs, out.prompt_logprobs) for out in outputs]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", HOWS)
def test_drafts_chunks_and_preemption_change_no_bit(how: str, mode: str) -> None:
    params = SamplingParams(max_tokens=20, logprobs=3, prompt_logprobs=2, logprobs_mode=mode, **HOWS[how])  # type: ignore[arg-type]
    plain = reported(run(toy_engine(DISTRIBUTION, None, vocab_size=VOCAB, end_token_ids=ENDS), PROMPTS, params))
    for name, make in DRAFTERS.items():
        for settings in ({}, {"max_num_batched_tokens": 3}):
            engine = toy_engine(DISTRIBUTION, make(), vocab_size=VOCAB, k=4, end_token_ids=ENDS, **settings)
            assert reported(run(engine, PROMPTS, params)) == plain, name
    engine = toy_engine(
        DISTRIBUTION, DRAFTERS["draft model"](), vocab_size=VOCAB, end_token_ids=ENDS, num_blocks=14, block_size=2
    )
    requests = [engine.add_request(str(i), prompt, params) for i, prompt in enumerate(PROMPTS)]
    drain(engine)
    assert sum(request.num_preemptions for request in requests) > 0
    assert reported([engine.take_output(str(i)) for i in range(len(PROMPTS))]) == plain


def test_raw_logprobs_are_the_models_own_and_the_greedy_token_leads() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=10, logprobs=2, prompt_logprobs=1)
    for prompt in PROMPTS:
        (output,) = run(toy_engine(DISTRIBUTION, DRAFTERS["ngram"](), vocab_size=VOCAB), [prompt], params)
        completion, logprobs = output.outputs[0], output.outputs[0].logprobs
        assert logprobs is not None
        assert output.prompt_logprobs is not None
        tokens = (*prompt, *completion.token_ids)
        entries = (*output.prompt_logprobs, *logprobs)
        assert len(entries) == len(tokens)
        assert entries[0] is None
        for place in range(1, len(tokens)):
            entry = entries[place]
            assert entry is not None
            assert entry.token_id == tokens[place]
            probs = DISTRIBUTION(tokens[:place])
            assert entry.logprob == pytest.approx(math.log(probs[tokens[place]]))
            assert entry.rank == 1 + int((probs > probs[tokens[place]]).sum())
            best, logprob = entry.top[0]
            assert best == int(np.argmax(probs))
            assert logprob == pytest.approx(math.log(probs.max()))
        assert all(entry.rank == 1 and entry.logprob == entry.top[0][1] for entry in logprobs)


def test_logprobs_of_a_recovered_token_are_the_distributions_and_not_the_residuals() -> None:
    params = SamplingParams(max_tokens=200, logprobs=0, logprobs_mode="processed")
    engine = toy_engine(DISTRIBUTION, DRAFTERS["draft model"](), vocab_size=VOCAB)
    (output,) = run(engine, [[1, 2]], params)
    completion, context = output.outputs[0], tuple[int, ...]([1, 2])
    assert {"recovered", "bonus", "accepted"} <= set(completion.sources)
    for entry in completion.logprobs or ():
        assert entry.logprob == pytest.approx(math.log(DISTRIBUTION(context)[entry.token_id]))
        assert entry.top == ()
        context = (*context, entry.token_id)


def test_an_end_inside_a_block_cuts_the_logprobs_too_and_pieces_carry_them() -> None:
    engine = toy_engine(DISTRIBUTION, DRAFTERS["draft model"](), vocab_size=VOCAB, end_token_ids=ENDS)
    params = SamplingParams(max_tokens=30, seed=1, logprobs=1, stop_token_ids=(4,))
    request = engine.add_request("x", [1, 2], params)
    collected: list[Any] = []
    while engine.has_requests:
        for _, piece in engine.step():
            assert piece.logprobs is not None
            assert [entry.token_id for entry in piece.logprobs] == list(piece.token_ids)
            collected += piece.logprobs
    completion = engine.take_output("x").outputs[0]
    assert completion.logprobs == tuple(collected)
    assert len(collected) == request.num_output_tokens


def test_nothing_is_reported_unless_asked_for() -> None:
    (output,) = run(toy_engine(DISTRIBUTION, None, vocab_size=VOCAB), [[1]], SamplingParams(max_tokens=3))
    assert output.outputs[0].logprobs is None
    assert output.prompt_logprobs is None
