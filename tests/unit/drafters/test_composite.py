"""Which drafter proposes, who learns the outcome, and that nothing but the number of passes changes."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafters.base import DraftRequest, Proposal
from outrider.drafters.composite import CompositeDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.request import Request
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams
from outrider.scheduler.speculation import Choice, Draftable, SpeculationController
from tests.toy import random_table
from tests.unit.engine.helpers import GREEDY, oracle, run, toy_engine

NOISE = KeyedNoise(0)
DISTRIBUTION = RequestSampler(SamplingParams(), [0], vocab_size=1)


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


def entry(name: str = "r", k: int = 8) -> DraftRequest:
    return DraftRequest(Request(name, (1,), SamplingParams(), 0, 100), k, NOISE, DISTRIBUTION)


def guess(token: int, *chances: float) -> Proposal:
    return Proposal((token,) * len(chances), chances=chances)


class Planner(SpeculationController):
    """Chooses what a test says; keeps what it is asked and told."""

    def __init__(self, *choices: Choice) -> None:
        self.choices = list(choices)
        self.asked: list[list[tuple[int, int | None]]] = []
        self.outcomes: list[tuple[str, int, int]] = []
        self.seconds: list[float] = []

    def plan(self, drafts: Sequence[Draftable]) -> list[Choice]:
        self.asked.append([(len(draft.survival), draft.behind) for draft in drafts])
        return self.choices[: len(drafts)] or super().plan(drafts)

    def observe_outcome(
        self, request: Request, drafter: str, accepted: int, length: int, chances: Sequence[float] | None
    ) -> None:
        self.outcomes.append((drafter, accepted, length))

    def observe_drafting(self, seconds: float) -> None:
        self.seconds.append(seconds)


def test_the_draft_that_should_be_accepted_furthest_proposes_and_its_drafter_learns_the_outcome() -> None:
    low, high = Fixed("low", guess(1, 0.5)), Fixed("high", guess(2, 0.9, 0.8))
    drafter = CompositeDrafter([low, high])
    one = entry()
    (proposal,) = drafter.propose([one])
    assert proposal.token_ids == (2, 2)
    assert proposal.note is not None
    assert proposal.note.drafter == "high"
    drafter.observe(one.request, 2, 1)
    assert (low.observed, high.observed) == ([], [("r", 2, 1)])
    drafter.forget("r")
    assert low.forgotten == high.forgotten == ["r"]


def test_the_planner_takes_the_beginning_of_a_draft_or_nothing() -> None:
    found = Fixed("found", guess(2, 0.9, 0.8, 0.7))
    drafter = CompositeDrafter([found], planner=Planner(Choice(2, expected=1.7)))
    (proposal,) = drafter.propose([entry()])
    assert (proposal.token_ids, proposal.chances) == ((2, 2), (0.9, 0.8))
    drafter = CompositeDrafter([found], planner=Planner(Choice(0, why="drafts would not pay")))
    (proposal,) = drafter.propose([entry()])
    assert not len(proposal)
    assert proposal.note is not None
    assert proposal.note.why == "drafts would not pay"


def test_a_draft_teaches_whether_it_was_verified_or_not() -> None:
    planner = Planner(Choice(0))
    drafter = CompositeDrafter([Fixed("found", guess(7, 0.9, 0.8, 0.7))], planner=planner)
    one = entry()
    said = [7, 7, 1, 7, 7, 7, 5]
    for count, token in enumerate(said):
        drafter.propose([one])
        one.request.token_ids.append(token)
        if count == 1:
            assert planner.outcomes == [], "two tokens came true, the third is open"
    drafter.propose([one])
    assert planner.outcomes == [("found", 2, 3), ("found", 3, 3), ("found", 0, 3)]


def test_a_request_that_leaves_takes_its_open_draft_along() -> None:
    planner = Planner(Choice(0))
    drafter = CompositeDrafter([Fixed("found", guess(7, 0.9))], planner=planner)
    one = entry()
    drafter.propose([one])
    drafter.forget("r")
    one.request.token_ids.append(7)
    drafter.propose([one])
    assert planner.outcomes == []


def test_the_model_drafts_what_the_planner_says_and_never_more_than_its_share() -> None:
    clock = Clock()
    model = Fixed("model", Proposal((5,) * 8), clock, seconds=0.5)
    planner = Planner(Choice(8, by_model=True, expected=2.0), Choice(2, by_model=True), Choice(0))
    drafter = CompositeDrafter([Fixed("none", Proposal())], model, model_max_tokens=3, planner=planner, clock=clock)
    batch = [entry("a"), entry("b"), entry("c")]
    proposals = drafter.propose(batch)
    assert [proposal.token_ids for proposal in proposals] == [(5, 5, 5), (5, 5), ()]
    assert model.asked == [3, 2]
    assert planner.seconds == [0.5]
    drafter.observe(batch[0].request, 3, 1)
    assert model.observed == [("a", 3, 1)]
    assert planner.outcomes == [("model", 1, 3)]


def test_a_request_may_choose_among_the_drafters() -> None:
    first, second, model = Fixed("first", guess(1, 0.9)), Fixed("second", guess(2, 0.5)), Fixed("model", guess(3, 0.5))
    planner = Planner()
    drafter = CompositeDrafter([first, second], model, planner=planner)
    assert drafter.methods == ("composite", "first", "second", "model")

    def chosen(method: str | None) -> DraftRequest:
        request = Request("r", (1,), SamplingParams(speculative_method=method), 0, 100)
        return DraftRequest(request, 8, NOISE, DISTRIBUTION)

    batch = [chosen(None), chosen("second"), chosen("model"), chosen("composite")]
    drafted = [proposal.token_ids[0] for proposal in drafter.propose(batch)]
    assert drafted == [1, 2, 3, 1]
    assert planner.asked == [[(1, 1), (1, None), (0, 1), (1, 1)]]


def test_in_an_engine_two_drafters_change_nothing_but_the_number_of_passes() -> None:
    distribution = random_table(6, seed=2, order=1, sharpness=3.0)
    params = [GREEDY, SamplingParams(temperature=1.0, seed=3, max_tokens=40), SamplingParams(seed=4, max_tokens=40)]
    prompts = [[0, 1], [2], [3, 4, 5]]
    plain = run(toy_engine(distribution, None, vocab_size=6), prompts, params)
    drafter = CompositeDrafter([SuffixDrafter()], oracle(distribution, vocab_size=6))
    drafted = run(toy_engine(distribution, drafter, vocab_size=6), prompts, params)
    assert [o.outputs[0].token_ids for o in plain] == [o.outputs[0].token_ids for o in drafted]
    passes = [sum(o.metrics.speculative_decoding.num_steps for o in outputs) for outputs in (plain, drafted)]
    assert passes[1] < passes[0]
