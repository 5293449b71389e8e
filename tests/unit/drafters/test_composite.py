"""Which drafter proposes, who learns the outcome, and that nothing but the number of passes changes."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafters.base import DraftRequest, Proposal
from outrider.drafters.composite import CompositeDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.models.toy import random_table
from outrider.request import Request
from outrider.sampling.request_law import RequestLaw
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams
from tests.unit.engine.helpers import GREEDY, oracle, run, toy_engine

NOISE = KeyedNoise(0)
LAW = RequestLaw(SamplingParams(), [0], vocab_size=1)


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
    return DraftRequest(Request(name, (1,), SamplingParams(), 0, 100), k, NOISE, LAW)


def guess(token: int, *chances: float) -> Proposal:
    return Proposal((token,) * len(chances), chances=chances)


def test_the_larger_promise_proposes_and_learns_the_outcome() -> None:
    low, high = Fixed("low", guess(1, 0.5)), Fixed("high", guess(2, 0.9, 0.8))
    drafter = CompositeDrafter([low, high])
    one = entry()
    (proposal,) = drafter.propose([one])
    assert proposal.token_ids == (2, 2)
    drafter.observe(one.request, 2, 1)
    assert (low.observed, high.observed) == ([], [("r", 2, 1)])
    drafter.forget("r")
    assert low.forgotten == high.forgotten == ["r"]


def test_a_drafter_that_promises_too_much_loses_its_turn() -> None:
    honest, boaster = Fixed("honest", guess(1, 0.6)), Fixed("boaster", guess(2, 0.9, 0.9))
    drafter = CompositeDrafter([honest, boaster])
    one = entry()
    turns = []
    for _ in range(10):
        (proposal,) = drafter.propose([one])
        turns.append(proposal.token_ids[0])
        drafter.observe(one.request, len(proposal), 1 if proposal.token_ids[0] == 1 else 0)
    assert turns[0] == 2
    assert turns[-1] == 1


def test_the_model_drafts_where_nothing_is_found_and_never_more_than_its_share() -> None:
    model = Fixed("model", Proposal((5,) * 8))
    drafter = CompositeDrafter([Fixed("none", Proposal())], model, model_max_tokens=3)
    (proposal,) = drafter.propose([entry(k=8)])
    assert proposal.token_ids == (5, 5, 5)
    drafter.propose([entry(k=2)])
    assert model.asked == [3, 2]


def test_the_model_is_left_out_where_what_was_found_promises_more_per_second() -> None:
    clock = Clock()
    found = Fixed("found", guess(1, 0.95, 0.9, 0.85))
    model = Fixed("model", Proposal((5,) * 4), clock, seconds=1.0)
    drafter = CompositeDrafter([found], model, model_max_tokens=4, clock=clock)
    one = entry()
    for _ in range(3):
        (proposal,) = drafter.propose([one])
        assert proposal.token_ids == (1, 1, 1)
        clock.now += 1.0
        drafter.observe(one.request, 3, 3)
    assert model.asked == []
    found.proposal = guess(1, 0.1)
    (proposal,) = drafter.propose([one])
    assert proposal.token_ids == (5, 5, 5, 5), "1.1 tokens in one second against 3 in one and a half"


def test_a_slow_model_that_is_often_wrong_gives_way_to_a_weak_find() -> None:
    clock = Clock()
    found = Fixed("found", Proposal())
    model = Fixed("model", Proposal((5,) * 4), clock, seconds=4.0)
    drafter = CompositeDrafter([found], model, clock=clock)
    one = entry()
    for _ in range(8):
        drafter.propose([one])
        clock.now += 1.0
        drafter.observe(one.request, 4, 1)
    assert len(model.observed) == 8
    found.proposal = guess(1, 0.3)
    (proposal,) = drafter.propose([one])
    assert proposal.token_ids == (1,)


def test_in_an_engine_two_drafters_change_nothing_but_the_number_of_passes() -> None:
    law = random_table(6, seed=2, order=1, sharpness=3.0)
    params = [GREEDY, SamplingParams(temperature=1.0, seed=3, max_tokens=40), SamplingParams(seed=4, max_tokens=40)]
    prompts = [[0, 1], [2], [3, 4, 5]]
    plain = run(toy_engine(law, None, vocab_size=6), prompts, params)
    drafter = CompositeDrafter([SuffixDrafter()], oracle(law, vocab_size=6))
    drafted = run(toy_engine(law, drafter, vocab_size=6), prompts, params)
    assert [o.outputs[0].token_ids for o in plain] == [o.outputs[0].token_ids for o in drafted]
    passes = [sum(o.metrics.speculative_decoding.num_steps for o in outputs) for outputs in (plain, drafted)]
    assert passes[1] < passes[0]
