"""The enumerated cases: small table models, the decode step made of the real parts, and the grid of settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any, Literal, ParamSpec

import numpy as np
from numpy.typing import NDArray

from outrider.audit.enumerate import enumerate_outcomes
from outrider.audit.languages import Language, grammar_of
from outrider.audit.traits import LATER_TRAITS, PARAMETER_TRAITS, TRAITS
from outrider.audit.tree_parts import TreeBuild
from outrider.sampling.noise import Noise, Purpose, Weights
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling_params import SamplingParams
from outrider.verification import oracle
from outrider.verification.base import Proposal, TargetProbs, TargetToken, VerifyResult
from outrider.verification.block import verify_block
from outrider.verification.match import sampled_tokens, verify_match
from outrider.verification.registry import VERIFIERS
from outrider.verification.standard import verify_standard

Asked = ParamSpec("Asked")
Tokens = tuple[int, ...]
DraftProbs = Callable[[Tokens], Weights]
Drafting = Literal["sampled", "with replacement", "point mass", "coupled"]
"""``sampled`` drafts are drawn with DRAFT noise; ``with replacement`` is the same for trees whose siblings can have the
same token. ``point mass`` drafts are the most probable tokens. ``coupled`` drafts are drawn with the TARGET noise."""
Verifier = str
"""standard, block, match; for trees traversal, recursive, tree match; or the name of another registered verifier."""

PROMPT: Tokens = (0, 1)


class TableModel:
    """A model whose logits [vocab], float64, are a fixed random function of all tokens before the position.

    ``zeros`` is the probability that a token is masked with -inf; at least one token is not masked. ``mix`` blends the
    logits with those of ``other``: 0 is this model alone, 1 is the other alone.
    """

    def __init__(
        self, vocab_size: int, seed: int, *, zeros: float = 0.0, other: TableModel | None = None, mix: float = 0.0
    ) -> None:
        self.vocab_size = vocab_size
        self._seed = seed
        self._zeros = zeros
        self._other = other
        self._mix = mix
        self._rows: dict[Tokens, NDArray[np.float64]] = {}

    def logits(self, context: Tokens) -> NDArray[np.float64]:
        """Logits [vocab] of the token after ``context``."""
        if context not in self._rows:
            rng = np.random.default_rng([self._seed, *context])
            row = 1.5 * rng.standard_normal(self.vocab_size)
            if self._other is not None:
                other = self._other.logits(context)
                row = (1.0 - self._mix) * row + self._mix * np.where(np.isfinite(other), other, 0.0)
            ruled_out = rng.random(self.vocab_size) < self._zeros
            ruled_out[rng.integers(self.vocab_size)] = False
            row[ruled_out] = -np.inf
            self._rows[context] = row
        return self._rows[context]


@dataclass(frozen=True)
class DraftTask:
    """The input of a draft function: draft at most ``max_tokens`` tokens after ``context``.

    Drafting stops at a token whose probability by ``probs`` is below ``stop_below``.
    """

    kind: Drafting
    probs: DraftProbs
    unprocessed_probs: DraftProbs
    context: Tokens
    max_tokens: int
    stop_below: float


def draft_tokens(request: DraftTask, noise: Noise) -> Proposal:
    """A draft function that follows the contract of ``Proposal``."""
    token_ids: list[int] = []
    rows: list[Weights] = []
    for position in range(len(request.context), len(request.context) + request.max_tokens):
        row = request.probs(request.context + tuple(token_ids))
        if request.kind == "sampled":
            token_id = noise.draw(row, position, Purpose.DRAFT)
        elif request.kind == "coupled":
            token_id = noise.draw(row, position, Purpose.TARGET)
        else:
            token_id = int(np.argmax(row))
        unlikely = row[token_id] < request.stop_below
        if unlikely and request.kind != "sampled":
            break  # the proposal of point masses is free, so this token can be dropped
        token_ids.append(token_id)
        rows.append(row)
        if unlikely:
            break  # a drawn token must be kept, because whether it is verified must not depend on its value
    return Proposal(tuple(token_ids), tuple(rows) if request.kind == "sampled" else None)


DraftFunction = Callable[[DraftTask, Noise], Proposal]
ProbsVerifier = Callable[[Proposal, TargetProbs, Noise, int], VerifyResult]
MatchVerifier = Callable[[Sequence[int], TargetToken], VerifyResult]


@dataclass(frozen=True)
class Place:
    """The position of a row of logits: after ``context``, which starts with ``PROMPT``.

    The last ``num_drafted`` tokens of ``context`` are drafts. ``language`` is the language of the request's grammar, if
    it has one.
    """

    context: Tokens
    num_drafted: int = 0
    end_token_ids: frozenset[int] = frozenset()
    language: Language | None = None


def probs_at(logits: Weights, params: SamplingParams, place: Place) -> Weights:
    """The distribution [vocab] of the token at ``place``, computed by the engine's ``RequestSampler``."""
    vocab_size, ends, language = len(logits), place.end_token_ids, place.language
    grammar = None if language is None else grammar_of(language, vocab_size, ends)
    request_sampler = RequestSampler(params, PROMPT, vocab_size=vocab_size, end_token_ids=ends, grammar=grammar)
    split = len(place.context) - place.num_drafted
    committed, drafted = place.context[:split], place.context[split:]
    # Drafter and verifier share the grammar of a request, so move it to other drafts first.
    request_sampler.num_legal(committed, [*drafted[:-1], *range(min(vocab_size, 2))])
    return request_sampler.probs(logits, committed, drafted)


PlaceProbs = Callable[[Weights, SamplingParams, Place], Weights]


@dataclass(frozen=True)
class Build:
    """The parts under audit. The defaults are the real ones; a ``Mutation`` replaces one of them."""

    probs: PlaceProbs = probs_at
    draft: DraftFunction = draft_tokens
    standard: ProbsVerifier = verify_standard
    block: ProbsVerifier = verify_block
    match: MatchVerifier = verify_match
    target_tokens: Callable[[TargetProbs, Noise, int], TargetToken] = sampled_tokens
    at_step: Callable[[Noise, int], Noise] = lambda noise, start: noise.at_step(start)
    tree: TreeBuild = field(default_factory=TreeBuild)


@dataclass(frozen=True)
class Case:
    """One pair of models and one way of decoding. ``total_variation`` audits it.

    ``num_drafts`` is K. Distributions are compared over strings of K + 1 tokens, the horizon. With ``repeat``, real
    steps that share one noise decode to the horizon, as in an engine. Otherwise one real step is completed with the
    target's plain distribution. ``language`` is the language of the request's grammar. The drafter applies the grammar
    only if ``drafts_within_language``.
    """

    trait: str
    vocab_size: int
    num_drafts: int
    verifier: Verifier = "standard"
    drafting: Drafting = "sampled"
    target_params: SamplingParams = field(default_factory=SamplingParams)
    draft_params: SamplingParams = field(default_factory=SamplingParams)
    zeros: float = 0.0
    draft_is_target: bool = False
    stop_below: float = 0.0
    end_token_ids: frozenset[int] = frozenset()
    repeat: bool = False
    language: Language | None = None
    drafts_within_language: bool = True
    seed: int = 0

    @property
    def name(self) -> str:
        """A name that is unique among the cases."""
        return f"{self.verifier}, {self.drafting}, {self.trait}, vocabulary {self.vocab_size}, K={self.num_drafts}"

    @property
    def num_strings(self) -> int:
        """Number of token strings of K + 1 tokens, end tokens ignored."""
        return int(self.vocab_size ** (self.num_drafts + 1))

    def models(self) -> tuple[TableModel, TableModel]:
        """Target and draft model."""
        return _models(self.vocab_size, self.seed, self.zeros, self.draft_is_target)

    def total_variation(self, build: Build) -> float:
        """Total variation between the output of ``build`` and the target's distribution of the next K + 1 tokens.

        Strings are cut at an end token. The oracle computes the expected distribution from the target's logits.
        """
        target, draft = self.models()
        table = _remembered(lambda context: self.oracle_probs(target, context))
        emitted_probs: dict[Tokens, float] = {}
        for emitted, probability in self._reached(build, target, draft).items():
            rest_probs = oracle.plain_distribution(table, PROMPT + emitted, self._room(emitted), self.end_token_ids)
            for rest, rest_probability in rest_probs.items():
                string = emitted + rest
                emitted_probs[string] = emitted_probs.get(string, 0.0) + probability * rest_probability
        expected = oracle.plain_distribution(table, PROMPT, self.num_drafts + 1, self.end_token_ids)
        return oracle.total_variation(emitted_probs, expected)

    def oracle_probs(self, target: TableModel, context: Tokens) -> Weights:
        """The target's distribution [vocab] of the token after ``context``, computed by the oracle."""
        output, params = context[len(PROMPT) :], self.target_params
        row: Weights = target.logits(context)
        if self.language is not None:
            row = self.language.masked(row, output, self.end_token_ids)
        logits = oracle.edited_logits(row, params, PROMPT, output, self.end_token_ids)
        return oracle.processed_probs(logits, params)

    def expected_accepted(self, build: Build) -> float:
        """The expected number of accepted drafts in the first step. Strings are not cut at end tokens."""
        step = self._stepper(build, *self.models())
        room = self.num_drafts + 1
        outcomes = enumerate_outcomes(lambda noise: len(step(PROMPT, room, noise)) - 1)
        return sum(probability * accepted for probability, accepted in outcomes)

    def _stepper(self, build: Build, target: TableModel, draft: TableModel) -> Callable[[Tokens, int, Noise], Tokens]:
        """The decode step: a function from (context, room, noise) to the emitted tokens; ``room`` is K + 1 at most."""

        def probs_of(
            model: TableModel, params: SamplingParams, language: Language | None = None
        ) -> Callable[[Tokens, int], Weights]:
            return lambda context, num_drafted: build.probs(
                model.logits(context), params, Place(context, num_drafted, self.end_token_ids, language)
            )

        draft_language = self.language if self.drafts_within_language else None
        target_probs_at = _remembered(probs_of(target, self.target_params, self.language))
        draft_probs_of = _remembered(probs_of(draft, self.draft_params, draft_language))
        soft_draft_probs_of = _remembered(probs_of(draft, SamplingParams()))

        def step(context: Tokens, room: int, whole_noise: Noise) -> Tokens:
            position = len(context)
            noise = build.at_step(whole_noise, position)

            def after(probs: Callable[[Tokens, int], Weights]) -> DraftProbs:
                return lambda longer: probs(longer, len(longer) - position)

            request = DraftTask(
                self.drafting, after(draft_probs_of), after(soft_draft_probs_of), context, room - 1, self.stop_below
            )
            return self._emitted(
                build, request, lambda drafted: target_probs_at(context + drafted, len(drafted)), noise
            )

        return step

    def _emitted(self, build: Build, request: DraftTask, probs_after: DraftProbs, noise: Noise) -> Tokens:
        """Draft and verify. ``probs_after(drafted)`` is the target's distribution [vocab] after these drafts."""
        position = len(request.context)
        proposal = build.draft(request, noise)

        def row(place: int) -> Weights:
            return probs_after(proposal.token_ids[:place])

        if self.verifier == "standard":
            result = build.standard(proposal, row, noise, position)
        elif self.verifier == "block":
            result = build.block(proposal, row, noise, position)
        elif self.verifier in VERIFIERS:
            result = VERIFIERS[self.verifier].chain(proposal, row, noise, position)
        else:
            result = build.match(proposal.token_ids, build.target_tokens(row, noise, position))
        return (*proposal.token_ids[: result.num_accepted], result.token_id)

    def _reached(self, build: Build, target: TableModel, draft: TableModel) -> dict[Tokens, float]:
        """The distribution of the tokens that one step emits, or with ``repeat`` all steps to the horizon."""
        step = self._stepper(build, target, draft)

        def decode(noise: Noise) -> Tokens:
            emitted: Tokens = ()
            while True:
                emitted = self._cut(emitted + step(PROMPT + emitted, self._room(emitted), noise))
                if not self.repeat or self._room(emitted) == 0:
                    return emitted

        reached: dict[Tokens, float] = {}
        for probability, emitted in enumerate_outcomes(decode):
            reached[emitted] = reached.get(emitted, 0.0) + probability
        return reached

    def _cut(self, emitted: Tokens) -> Tokens:
        for place, token_id in enumerate(emitted):
            if token_id in self.end_token_ids:
                return emitted[: place + 1]
        return emitted

    def _room(self, emitted: Tokens) -> int:
        return 0 if self.end_token_ids & set(emitted) else self.num_drafts + 1 - len(emitted)


@cache
def _models(vocab_size: int, seed: int, zeros: float, draft_is_target: bool) -> tuple[TableModel, TableModel]:
    target = TableModel(vocab_size, 2 * seed, zeros=zeros)
    if draft_is_target:
        return target, target
    return target, TableModel(vocab_size, 2 * seed + 1, zeros=zeros, other=target, mix=0.3)


def _remembered(table: Callable[Asked, Weights]) -> Callable[Asked, Weights]:
    """``table`` with a cache of its results."""
    rows: dict[tuple[Any, ...], Weights] = {}

    def remembered(*args: Asked.args, **kwargs: Asked.kwargs) -> Weights:
        if args not in rows:
            rows[args] = table(*args, **kwargs)
        return rows[args]

    return remembered


_WAYS: tuple[tuple[str, Drafting], ...] = (
    ("standard", "sampled"),
    ("standard", "point mass"),
    ("block", "sampled"),
    ("match", "point mass"),
    ("match", "coupled"),
)
_SHAPES = ((3, 0), (3, 1), (4, 1), (5, 1), (3, 2), (4, 2), (5, 2), (3, 3), (4, 3), (5, 3))
_FEW_DRAFTS = ((3, 1), (4, 1), (3, 2), (4, 2), (3, 3))
_REPEAT_WITHIN = 3**4
"""Largest ``num_strings`` of a case with ``repeat``; larger ones take too long and are left out."""


def all_cases() -> Iterator[Case]:
    """The grid: (verifier, drafting) x (vocabulary, K) x traits. Each (vocabulary, K, trait) has models of its own.

    A registered verifier whose ``chain`` function is not ``verify_standard`` or ``verify_block`` is added to the grid.
    """
    own_rules = [each.name for each in VERIFIERS.values() if each.chain not in (verify_standard, verify_block)]
    for verifier, drafting in (*_WAYS, *((name, "sampled") for name in own_rules)):
        grid = [
            *product(_SHAPES, TRAITS.items()),
            *product(_FEW_DRAFTS, PARAMETER_TRAITS.items()),
            *product(_FEW_DRAFTS, LATER_TRAITS.items()),
        ]
        for seed, ((vocab_size, num_drafts), (trait, settings)) in enumerate(grid):
            case = Case(trait, vocab_size, num_drafts, verifier, drafting, seed=seed, **settings)
            if not case.repeat or case.num_strings <= _REPEAT_WITHIN:
                yield case
