"""Toy engines: a target with a known distribution, drafters that do what a test says, and a run that checks every
step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider.audit.enumerate import EnumeratingNoise, enumerate_outcomes
from outrider.detokenizer import TokenStream
from outrider.drafters.base import Drafter, DraftRequest, Proposal
from outrider.engine.engine import Engine, EngineLimits, TextTools
from outrider.outputs import RequestOutput
from outrider.request import Request
from outrider.runner.model_runner import ModelRunner
from outrider.sampling.grammar import GrammarCompiler
from outrider.sampling_params import SamplingParams
from outrider.speculation.policy import FixedPolicy, Policy
from outrider.speculation.speculator import Speculator
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


@dataclass(frozen=True)
class Composite:
    """Drafters that look text up, and one that drafts where nothing is found."""

    retrieval: Sequence[Drafter]
    model: Drafter | None = None


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


class KSchedule(FixedPolicy):
    """K by the number of tokens committed so far."""

    def __init__(self, schedule: Callable[[Request], int]) -> None:
        super().__init__(0)
        self._schedule = schedule

    def budget(self, request: Request, steps_without_drafts: int) -> int:
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


def engine_of(
    runner: ModelRunner,
    drafter: Drafter | Composite | Speculator | None = None,
    k: int | Policy = 4,
    *,
    new_stream: Callable[[bool], TokenStream] = lambda _: LetterStream(),
    encode: Callable[[str], Sequence[int]] | None = None,
    grammars: GrammarCompiler | None = None,
    end_token_ids: frozenset[int] = frozenset(),
    max_model_len: int = 256,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 512,
    **settings: Any,
) -> Engine:
    """An engine over ``runner``; a drafter drafts ``k`` tokens in each step, or as many as a policy says."""
    if not isinstance(drafter, Speculator):
        drafter = speculator_of(drafter, k)
    text = TextTools(new_stream, end_token_ids, encode, grammars)
    limits = EngineLimits(max_model_len, max_num_seqs, max_num_batched_tokens)
    return Engine(runner, drafter, text, limits, **{"seed": 0, **settings})


def speculator_of(drafter: Drafter | Composite | None, k: int | Policy = 4) -> Speculator:
    """One drafter alone or several, by K or by a policy."""
    policy = FixedPolicy(k) if isinstance(k, int) else k
    if isinstance(drafter, Composite):
        return Speculator(drafter.retrieval, drafter.model, policy)
    return Speculator((), drafter, policy, name="none" if drafter is None else drafter.name)


def toy_engine(
    distribution: Distribution,
    drafter: Drafter | Composite | Speculator | None = None,
    *,
    vocab_size: int,
    k: int | Policy = 4,
    num_blocks: int = 64,
    block_size: int = 4,
    **settings: Any,
) -> Engine:
    """An engine over a toy target."""
    runner = ModelRunner(ToyModel(vocab_size, distribution), num_blocks=num_blocks, block_size=block_size)
    return engine_of(runner, drafter, k, **settings)


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
