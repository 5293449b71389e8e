"""Two thousand requests, a tenth aborted, others made to fail: nothing is left of them, and no answer differs."""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from outrider.drafters.base import Drafter, DraftRequest, Proposal
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NGramDrafter
from outrider.request import Request
from outrider.runner.model_runner import ModelRunner
from outrider.sampling_params import SamplingParams
from outrider.speculation.adaptive import AdaptivePolicy, ModelDrafting
from outrider.speculation.costs import DraftCosts, PassCosts
from outrider.speculation.policy import Draftable, FixedPolicy, Plan, StepOutlook
from outrider.speculation.speculator import Speculator
from tests.toy import ToyModel, random_table
from tests.unit.engine.helpers import run, toy_engine

VOCAB = 6
DISTRIBUTION = random_table(VOCAB, seed=2, sharpness=2.0)
COUNT = 2000


class Faulty:
    """A drafter around another that raises at every ``EVERY``-th call: how many calls there are, measured times say."""

    EVERY = 61

    def __init__(self, inner: Drafter) -> None:
        self.name = inner.name
        self._inner = inner
        self.num_calls = 0

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        self.num_calls += 1
        if self.num_calls % self.EVERY == 0:
            raise RuntimeError("planted")
        return self._inner.propose(batch)

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        self._inner.observe(request, num_drafted, num_accepted)

    def forget(self, request_id: str) -> None:
        self._inner.forget(request_id)


class Restless(AdaptivePolicy):
    """Drafts whatever it can in two of three steps, since over a toy model drafts hardly ever pay."""

    def plan(self, step: StepOutlook, drafts: Sequence[Draftable]) -> Plan:
        chosen = super().plan(step, drafts)
        return FixedPolicy(4).plan(step, drafts) if self._num_steps % 3 else chosen


def failing_processor(tokens: tuple[int, ...], logits: object) -> object:
    if len(tokens) > 6:
        raise ValueError("planted")
    return logits


@pytest.fixture
def unlogged() -> Iterator[None]:
    """No log records, which would hold the tracebacks of planted failures and with them the requests."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("unlogged")
def test_two_thousand_requests_leave_nothing_behind() -> None:
    chance = random.Random(5)
    model = DraftModelDrafter(
        ModelRunner(ToyModel(VOCAB, random_table(VOCAB, seed=3, sharpness=2.0)), num_blocks=60, block_size=2),
        target_vocab_size=VOCAB,
        max_num_batched_tokens=64,
    )
    faulty = Faulty(model)
    policy = Restless(
        PassCosts({1: 1e-3, 8: 1.1e-3}),
        num_speculative_tokens=4,
        model=ModelDrafting(faulty.name, DraftCosts(PassCosts({1: 1e-5})), 4),
    )
    speculator = Speculator([NGramDrafter(min_match=1, max_match=3)], faulty, policy)
    engine = toy_engine(
        DISTRIBUTION,
        speculator,
        vocab_size=VOCAB,
        num_blocks=60,
        block_size=2,
        max_model_len=40,
        max_num_seqs=24,
    )
    forward, failures = engine.runner.forward, []

    def sometimes_fails(*arguments: Any) -> object:
        if chance.random() < 0.015:
            failures.append(1)
            raise RuntimeError("planted")
        return forward(*arguments)

    engine.runner.forward = sometimes_fails  # type: ignore[assignment, method-assign]
    solo = toy_engine(DISTRIBUTION, None, vocab_size=VOCAB, max_model_len=40)
    prompts = [[chance.randrange(VOCAB) for _ in range(chance.randint(1, 12))] for _ in range(40)]
    expected = {
        (place, seed): run(solo, [prompt], SamplingParams(seed=seed, max_tokens=10))[0].outputs[0].token_ids
        for place, prompt in enumerate(prompts)
        for seed in (0, 1)
    }
    open_requests: dict[str, tuple[int, int]] = {}
    finished = {"length": 0, "abort": 0, "error": 0, "stop": 0}
    added = 0
    while added < COUNT or open_requests:
        while added < COUNT and len(open_requests) < 40:
            place, seed, name = chance.randrange(40), chance.randrange(2), str(added)
            processors = (failing_processor,) if chance.random() < 0.02 else ()
            params = SamplingParams(seed=seed, max_tokens=10, logits_processors=processors)
            engine.add_request(name, prompts[place], params, priority=chance.randrange(3))
            open_requests[name] = (place, seed)
            added += 1
            if chance.random() < 0.1:
                engine.abort(chance.choice(list(open_requests)))
        engine.step()
        if chance.random() < 0.02:
            engine.check_integrity()
            model.check_integrity()
        for name, key in list(open_requests.items()):
            if engine._requests[name].finished:
                output = engine.take_output(name)
                completion = output.outputs[0]
                assert completion.finish_reason is not None
                finished[completion.finish_reason] += 1
                said = expected[key]
                if completion.finish_reason == "length":
                    assert completion.token_ids == said
                else:
                    assert completion.token_ids == said[: len(completion.token_ids)]
                del open_requests[name]
    assert faulty.num_calls > 3 * Faulty.EVERY
    assert len(failures) > 0
    assert finished["abort"] > 100
    assert finished["error"] > 10
    assert finished["length"] > 1000
    assert sum(finished.values()) == COUNT
    engine.check_integrity()
    assert engine.runner.kv.num_free_blocks == engine.runner.kv.num_blocks
    assert model._passes._runner.kv.num_free_blocks == model._passes._runner.kv.num_blocks
    kept: list[dict[str, Any]] = [engine._requests, speculator._records]
    kept += [model._passes._num_computed, engine.runner.kv._tables, engine.runner.kv._keys]
    assert not any(kept), kept
    del output
    gc.collect()
    leaked = [each for each in gc.get_objects() if isinstance(each, Request)]
    assert not leaked, f"{len(leaked)} requests are still held"
    assert policy.exploration.seconds is not None


def test_preempted_at_any_step_a_request_says_the_same() -> None:
    params = [
        SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
        SamplingParams(seed=3, max_tokens=12, frequency_penalty=0.5, logprobs=1, prompt_logprobs=1),
    ]
    prompts = [[1, 2, 3], [4, 5, 1, 2, 3]]
    plain = run(toy_engine(DISTRIBUTION, None, vocab_size=VOCAB), prompts, params)
    for at in range(14):
        for again in (1, 3):
            drafter = DraftModelDrafter(
                ModelRunner(ToyModel(VOCAB, DISTRIBUTION), num_blocks=60, block_size=2),
                target_vocab_size=VOCAB,
                max_num_batched_tokens=64,
            )
            engine = toy_engine(DISTRIBUTION, drafter, vocab_size=VOCAB, k=at % 4, block_size=2)
            for index, prompt in enumerate(prompts):
                engine.add_request(str(index), prompt, params[index])
            count = 0
            while engine.has_requests:
                if count in (at, at + again):
                    for request in list(engine.scheduler.running):
                        engine.scheduler._preempt(request)
                engine.step()
                engine.check_integrity()
                count += 1
            for index, output in enumerate(plain):
                said = engine.take_output(str(index))
                assert said.outputs[0].token_ids == output.outputs[0].token_ids, f"preempted before step {at}"
                assert said.outputs[0].logprobs == output.outputs[0].logprobs
                assert said.prompt_logprobs == output.prompt_logprobs
