"""Which drafter proposes, who learns the outcome, and that nothing but the number of passes changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.detokenizer import Detokenizer
from outrider.drafters.base import DrafterDefaults, DraftRequest, Proposal, ProposalNote
from outrider.drafters.suffix import SuffixDrafter
from outrider.request import Request
from outrider.request_state import RequestState
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams
from outrider.scheduler.scheduler import Grant
from outrider.speculation.acceptance import AcceptanceEstimates
from outrider.speculation.costs import PassLoad
from outrider.speculation.policy import NOT_WORTH_IT, Choice, Draftable, FixedPolicy, Plan, StepOutlook
from outrider.speculation.report import RequestOutcome, StepReport
from outrider.speculation.speculator import Speculator
from tests.toy import random_table
from tests.unit.engine.helpers import GREEDY, Composite, LetterStream, oracle, run, toy_engine

VOCAB = 10


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Fixed:
    """Always the same proposal, which takes ``seconds``; keeps what it is told."""

    def __init__(self, name: str, proposal: Proposal, clock: Clock | None = None, seconds: float = 0.0) -> None:
        self.name = name
        self.proposal = proposal
        self.observed: list[tuple[str, int, int]] = []
        self.forgotten: list[str] = []
        self.asked: list[int] = []
        self._clock, self._seconds = clock, seconds

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        self.asked += [entry.max_tokens for entry in batch]
        if self._clock is not None:
            self._clock.now += self._seconds
        return (
            [Proposal(self.proposal.token_ids[: entry.max_tokens]) for entry in batch]
            if (self.proposal.chances is None)
            else [self.proposal for _ in batch]
        )

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        self.observed.append((request.request_id, num_drafted, num_accepted))

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)


def state(name: str = "r", **params: Any) -> RequestState:
    """A request that has a prompt of two tokens and one output token."""
    chosen = SamplingParams(**params)
    request = RequestState(
        request_id=name,
        prompt_token_ids=(1, 1),
        params=chosen,
        noise_seed=0,
        max_total_tokens=100,
        sampler=RequestSampler(chosen, [1, 1], vocab_size=VOCAB),
        noise=KeyedNoise(0),
        detokenizer=Detokenizer(LetterStream(), ()),
    )
    request.token_ids.append(1)
    request.num_computed_tokens = 2
    return request


def grant(request: RequestState, k: int = 8) -> Grant[RequestState]:
    return Grant(request, 1, k, scores=True)


def report(*outcomes: tuple[RequestState, Proposal, int, Sequence[int]]) -> StepReport:
    """Of requests that gained tokens after their proposals; the tokens are committed here."""
    told = []
    for request, proposal, accepted, gained in outcomes:
        request.token_ids.extend(gained)
        told.append(RequestOutcome(request, True, proposal, accepted, len(gained), 1 + len(proposal), 0.0))
    return StepReport(told, PassLoad(len(told)), 1.0, 1.0)


def guess(token: int, *chances: float) -> Proposal:
    return Proposal((token,) * len(chances), chances=chances)


class Told(FixedPolicy):
    """Chooses what a test says; keeps what it is asked and told."""

    def __init__(self, *choices: Choice) -> None:
        super().__init__(8)
        self.choices = list(choices)
        self.asked: list[list[tuple[int, bool]]] = []
        self.reports: list[StepReport] = []

    def plan(self, step: StepOutlook, drafts: Sequence[Draftable]) -> Plan:
        self.asked.append([(len(draft.retrieved), bool(draft.modelled)) for draft in drafts])
        return Plan(self.choices[: len(drafts)]) if self.choices else super().plan(step, drafts)

    def learn(self, report: StepReport) -> None:
        self.reports.append(report)


def test_the_draft_expected_to_be_accepted_furthest_is_proposed_and_its_drafter_learns_the_outcome() -> None:
    low, high = Fixed("low", guess(1, 0.5)), Fixed("high", guess(2, 0.9, 0.8))
    speculator, one = Speculator([low, high], policy=FixedPolicy(8)), state()
    (proposal,) = speculator.propose([grant(one)])
    assert proposal.token_ids == (2, 2)
    assert proposal.note == ProposalNote("high", 0.9 + 0.8)
    speculator.learn(report((one, proposal, 1, [2, 5])))
    assert (low.observed, high.observed) == ([], [("r", 2, 1)])
    speculator.forget("r")
    assert low.forgotten == high.forgotten == ["r"]


def test_the_policy_takes_the_beginning_of_a_draft_or_nothing() -> None:
    found = Fixed("found", guess(2, 0.9, 0.8, 0.7))
    (proposal,) = Speculator([found], policy=Told(Choice(2, expected=1.7))).propose([grant(state())])
    assert (proposal.token_ids, proposal.chances) == ((2, 2), (0.9, 0.8))
    none = Choice(0, why=NOT_WORTH_IT)
    (proposal,) = Speculator([found], policy=Told(none)).propose([grant(state())])
    assert not len(proposal)
    assert proposal.note == ProposalNote(why=NOT_WORTH_IT)


def test_a_draft_teaches_whether_it_was_verified_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    speculator = Speculator([Fixed("found", guess(7, 0.9, 0.8, 0.7))], policy=Told(Choice(0)))
    one, seen = state(), list[tuple[int, int]]()
    monkeypatch.setattr(AcceptanceEstimates, "observe", lambda self, own, *told: seen.append(told[:2]))
    for count, token in enumerate([7, 7, 1, 7, 7, 7, 5]):
        (proposal,) = speculator.propose([grant(one)])
        speculator.learn(report((one, proposal, 0, [token])))
        if count == 1:
            assert seen == [], "two tokens were right, the third is open"
    assert seen == [(2, 3), (3, 3), (0, 3)]


def test_a_request_that_leaves_takes_its_open_draft_along() -> None:
    speculator, one = Speculator([Fixed("found", guess(7, 0.9, 0.8))], policy=Told(Choice(0))), state()
    speculator.propose([grant(one)])
    speculator.forget("r")
    assert not speculator._records
    one.token_ids.append(7)
    (proposal,) = speculator.propose([grant(one)])
    speculator.learn(report((one, proposal, 0, [7])))
    record = speculator._records["r"]
    assert record.open is not None
    assert record.open.start == 4, "the draft of before is forgotten, the one after it is open"
    assert not record.outcomes


def test_the_model_drafts_what_the_policy_says_and_its_time_is_told() -> None:
    clock = Clock()
    model = Fixed("model", Proposal((5,) * 8), clock, seconds=0.5)
    policy = Told(Choice(3, by_model=True, expected=2.0), Choice(2, by_model=True), Choice(0))
    speculator = Speculator([Fixed("none", Proposal())], model, policy, model_max_tokens=3, clock=clock)
    states = [state("a"), state("b"), state("c")]
    proposals = speculator.propose([grant(each) for each in states])
    assert [proposal.token_ids for proposal in proposals] == [(5, 5, 5), (5, 5), ()]
    assert model.asked == [3, 2]
    speculator.learn(report((states[0], proposals[0], 1, [5, 6])))
    assert policy.reports[0].model_seconds == policy.reports[0].drafting_seconds == 0.5
    assert model.observed == [("a", 3, 1)]
    assert speculator._records["a"].outcomes.keys() == {"model"}


def test_what_the_model_may_draft_is_offered_up_to_its_share() -> None:
    offered: list[int] = []

    class Asking(Told):
        def plan(self, step: StepOutlook, drafts: Sequence[Draftable]) -> Plan:
            offered.extend(len(draft.modelled) for draft in drafts)
            return super().plan(step, drafts)

    speculator = Speculator([], Fixed("model", Proposal()), Asking(Choice()), model_max_tokens=3)
    speculator.propose([grant(state())])
    speculator.propose([grant(state(), k=2)])
    assert offered == [3, 2]


def test_a_request_may_choose_among_the_drafters() -> None:
    first, second, model = Fixed("first", guess(1, 0.9)), Fixed("second", guess(2, 0.5)), Fixed("model", guess(3, 0.5))
    policy = Told()
    speculator = Speculator([first, second], model, policy)
    assert speculator.methods == ("off", "composite", "first", "second", "model")
    wanted = [None, "second", "model", "composite"]
    batch = [grant(state(str(i), speculative_method=method)) for i, method in enumerate(wanted)]
    drafted = [proposal.token_ids[0] for proposal in speculator.propose(batch)]
    assert drafted == [1, 2, 3, 1]
    assert policy.asked == [[(1, True), (1, False), (0, True), (1, True)]]


def test_hidden_states_go_to_the_drafter_that_asks() -> None:
    class Head(DrafterDefaults, Fixed):
        seen: ClassVar[list[tuple[str, int]]] = []

        @property
        def hidden_layers(self) -> tuple[int, ...]:
            return (2, 5)

        def observe_hidden(self, request: Request, hidden: NDArray[np.float32]) -> None:
            self.seen.append((request.request_id, int(hidden[0, 0, 0])))

    head, one = Head("head", Proposal((5,))), state()
    speculator = Speculator([], head, FixedPolicy(1))
    assert speculator.hidden_layers == (2, 5)
    assert Speculator([], Fixed("plain", Proposal()), FixedPolicy(1)).hidden_layers == ()
    (proposal,) = speculator.propose([grant(one)])
    hidden = np.full((2, 2, 4), 9, dtype=np.float32)
    one.token_ids.extend([5, 6])
    told = RequestOutcome(one, True, proposal, 1, 2, 2, 0.0, hidden)
    speculator.learn(StepReport([told], PassLoad(2), 1.0, 1.0))
    assert head.seen == [("r", 9)]


def test_in_an_engine_two_drafters_change_nothing_but_the_number_of_passes() -> None:
    distribution = random_table(6, seed=2, order=1, sharpness=3.0)
    params = [GREEDY, SamplingParams(temperature=1.0, seed=3, max_tokens=40), SamplingParams(seed=4, max_tokens=40)]
    prompts = [[0, 1], [2], [3, 4, 5]]
    plain = run(toy_engine(distribution, None, vocab_size=6), prompts, params)
    drafter = Composite([SuffixDrafter()], oracle(distribution, vocab_size=6))
    drafted = run(toy_engine(distribution, drafter, vocab_size=6), prompts, params)
    assert [o.outputs[0].token_ids for o in plain] == [o.outputs[0].token_ids for o in drafted]
    passes = [sum(o.metrics.speculative_decoding.num_steps for o in outputs) for outputs in (plain, drafted)]
    assert passes[1] < passes[0]
