"""Toy engines: a target with a known distribution, drafters that do what a test says, and a run that checks every
step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from outrider.audit.enumerate import EnumeratingNoise, enumerate_outcomes
from outrider.drafters.base import Drafter, DraftRequest, Proposal
from outrider.engine.engine import Engine
from outrider.outputs import RequestOutput
from outrider.request import Request
from outrider.runner.model_runner import ModelRunner
from outrider.sampling_params import SamplingParams
from outrider.scheduler.speculation import FixedSpeculation, SpeculationController
from tests.toy import Distribution, ToyModel

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


class LetterStream:
    """Token 0 is "a", 1 is "b", and so on."""

    def step(self, token_id: int) -> str:
        return chr(ord("a") + token_id % 26)

    def finish(self) -> str:
        return ""


class ScriptedDrafter:
    """Proposes what ``choose(request, max_tokens)`` says, as a point mass; records what it observes."""

    name = "scripted"

    def __init__(self, choose: Callable[[Request, int], Sequence[int]]) -> None:
        self._choose = choose
        self.observed: list[tuple[str, int, int]] = []
        self.forgotten: list[str] = []

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal(tuple(self._choose(entry.request, entry.max_tokens))) for entry in batch]

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        self.observed.append((request.request_id, num_drafted, num_accepted))

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)


def recorded(drafter: Drafter) -> list[tuple[DraftRequest, Proposal]]:
    """What the drafter will have proposed, and for what."""
    seen: list[tuple[DraftRequest, Proposal]] = []
    propose = drafter.propose

    def recording(batch: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = propose(batch)
        seen.extend(zip(batch, proposals, strict=True))
        return proposals

    drafter.propose = recording  # type: ignore[method-assign]
    return seen


class KSchedule(SpeculationController):
    """K by the number of tokens committed so far."""

    def __init__(self, schedule: Callable[[Request], int]) -> None:
        self._schedule = schedule

    def num_draft_tokens(self, request: Request) -> int:
        return self._schedule(request)


def distance(once: Callable[[EnumeratingNoise], tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Total variation between what ``once`` emits, over every branch of its noise, and ``expected``."""
    emitted: dict[tuple[int, ...], float] = {}
    for probability, tokens in enumerate_outcomes(once):
        emitted[tokens] = emitted.get(tokens, 0.0) + probability
    return 0.5 * sum(abs(emitted.get(s, 0.0) - expected.get(s, 0.0)) for s in emitted.keys() | expected.keys())


def greedy_continuation(distribution: Distribution, context: Sequence[int], count: int) -> list[int]:
    """What a greedy target alone says after ``context``."""
    tokens = list(context)
    for _ in range(count):
        tokens.append(int(np.argmax(distribution(tuple(tokens)))))
    return tokens[len(context) :]


def oracle(
    distribution: Distribution, *, right: Callable[[Request], int] | None = None, vocab_size: int
) -> ScriptedDrafter:
    """Drafts the target's greedy tokens; after ``right(request)`` of them all the others are wrong."""

    def choose(request: Request, max_tokens: int) -> list[int]:
        tokens = greedy_continuation(distribution, request.token_ids, max_tokens)
        good = max_tokens if right is None else right(request)
        return [t if i < good else (t + 1) % vocab_size for i, t in enumerate(tokens)]

    return ScriptedDrafter(choose)


def toy_engine(
    distribution: Distribution,
    drafter: Drafter | None = None,
    *,
    vocab_size: int,
    k: int | SpeculationController = 4,
    num_blocks: int = 64,
    block_size: int = 4,
    **settings: Any,
) -> Engine:
    """An engine over a toy target."""
    model = ToyModel(vocab_size, distribution)
    controller = FixedSpeculation(k) if isinstance(k, int) else k
    runner = ModelRunner(model, num_blocks=num_blocks, block_size=block_size)
    settings.setdefault("max_model_len", 256)
    return Engine(runner, drafter, controller, new_stream=lambda _: LetterStream(), seed=0, **settings)


def drain(engine: Engine) -> None:
    """Step until nothing is left, checking the blocks after every step."""
    for _ in range(20_000):
        if not engine.has_requests:
            break
        engine.step()
        engine.check_integrity()
    assert not engine.has_requests
    assert engine.runner.kv.num_free_blocks == engine.runner.kv.num_blocks


def run(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams] = GREEDY
) -> list[RequestOutput]:
    """All prompts in one batch."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    for index, (prompt, chosen) in enumerate(zip(prompts, each, strict=True)):
        engine.add_request(str(index), prompt, chosen)
    drain(engine)
    return [engine.take_output(str(index)) for index in range(len(prompts))]
