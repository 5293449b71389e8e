"""The adaptive policy over made-up cost tables and outcomes: what pays is drafted, what does not pay is not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.request import Request
from outrider.sampling_params import SamplingParams
from outrider.speculation.acceptance import DEFAULT_PRIOR, AcceptanceEstimates, RequestOutcomes
from outrider.speculation.adaptive import AdaptivePolicy, ModelDrafting
from outrider.speculation.costs import DraftCosts, PassCosts, PassLoad
from outrider.speculation.ledger import EXPLORATION_SHARE
from outrider.speculation.policy import Choice, Draftable, StepOutlook
from outrider.speculation.report import RequestOutcome, StepReport
from outrider.verification.base import Proposal, ProposalNote

FLAT = {1: 1.0, 4: 1.1, 8: 1.6, 16: 3.0, 32: 6.0}
"""Seconds of a pass by rows: four rows nearly for the price of one, then more and more."""


def request(name: str = "r", tokens: int = 100) -> Request:
    return Request(name, tuple(range(tokens)), SamplingParams(temperature=0.0), 0, 100_000)


def retrieved(*probs: float, of: Request | None = None) -> Draftable:
    return Draftable(of or request(), 15, probs)


class Model:
    """What is known of a model drafter's acceptance, as the speculator keeps it."""

    def __init__(self, max_tokens: int = 8) -> None:
        self.estimates = AcceptanceEstimates(DEFAULT_PRIOR)
        self.own: dict[str, RequestOutcomes] = {}
        self.max_tokens = max_tokens

    def draftable(
        self, of: Request | None = None, *, uncomputed: int = 1, found: Sequence[float] = (), max_tokens: int = 15
    ) -> Draftable:
        each = of or request()
        own = self.own.get(each.request_id)
        return Draftable(
            each, max_tokens, found, self.estimates.probs(own, min(max_tokens, self.max_tokens)), uncomputed
        )

    def observe(self, of: Request, accepted: int, length: int) -> None:
        self.estimates.observe(self.own.setdefault(of.request_id, RequestOutcomes()), accepted, length)


def policy_of(
    table: dict[int, float] | None = None, *, cap: int = 15, model_seconds: float | None = None
) -> AdaptivePolicy:
    model = None
    if model_seconds is not None:
        costs = DraftCosts(PassCosts({1: model_seconds, 16: 2.0 * model_seconds}))
        model = ModelDrafting("model", costs, max_tokens=8)
    return AdaptivePolicy(PassCosts(table or FLAT), num_speculative_tokens=cap, model=model)


def plan(
    policy: AdaptivePolicy, drafts: Sequence[Draftable], *, others: int = 0, prompt_rows: int = 0
) -> Sequence[Choice]:
    decoding = [draft.request for draft in drafts] + [request(f"other {i}") for i in range(others)]
    load = PassLoad(len(decoding) + prompt_rows)
    return policy.plan(StepOutlook(load, decoding, len(decoding) + min(prompt_rows, 1)), drafts).choices


def outcome(
    of: Request, *, accepted: int = 0, drafted: int = 0, gained: int = 1, seconds: float = 0.0, rows: int = 0
) -> RequestOutcome:
    """A request's part of a step; what it drafted came from the model."""
    proposal = Proposal((0,) * drafted, note=ProposalNote("model")) if drafted else Proposal()
    return RequestOutcome(of, True, proposal, accepted, gained, rows, seconds)


def learn(
    policy: AdaptivePolicy,
    rows: int,
    forward: float,
    outcomes: Sequence[RequestOutcome],
    *,
    whole: float | None = None,
    model: float = 0.0,
) -> None:
    whole = forward + model if whole is None else whole
    policy.learn(StepReport(outcomes, PassLoad(rows), forward, whole, model_seconds=model))


def tokens_per_second(table: dict[int, float], rows: int, accepted: float) -> float:
    return (1.0 + accepted) / PassCosts(table).seconds(PassLoad(rows))


def settle(policy: AdaptivePolicy, drafts: Sequence[Draftable]) -> Sequence[Choice]:
    """Plan and live through the same step until the rate has settled; each draft comes out as estimated."""
    for _ in range(200):
        choices = plan(policy, drafts)
        rows = len(drafts) + sum(choice.num_tokens for choice in choices)
        seconds = policy.passes.seconds(PassLoad(rows))
        gained = [outcome(d.request, gained=1 + round(c.expected)) for d, c in zip(drafts, choices, strict=True)]
        learn(policy, rows, seconds, gained)
    return choices


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.05, 0.99), min_size=15, max_size=15),
    st.sampled_from([FLAT, {1: 1.0, 16: 1.0}, {1: 1.0, 2: 2.0}, {1: 1.0, 16: 2.5}]),
)
def test_k_is_the_one_of_most_tokens_per_second(rates: list[float], table: dict[int, float]) -> None:
    probs = np.cumprod(rates)
    speeds = [tokens_per_second(table, 1 + k, float(probs[:k].sum())) for k in range(16)]
    (choice,) = settle(policy_of(table), [retrieved(*probs.tolist())])
    chosen = speeds[choice.num_tokens]
    assert chosen >= 0.95 * max(speeds), (
        f"K={choice.num_tokens} gives {chosen}, the best is {np.argmax(speeds)}: {speeds}"
    )
    assert choice.expected == pytest.approx(float(probs[: choice.num_tokens].sum()))


def test_where_a_row_costs_as_much_as_a_pass_nothing_is_drafted() -> None:
    (choice,) = plan(policy_of({1: 1.0, 2: 2.0}), [retrieved(0.9, 0.8, 0.7)])
    assert choice.num_tokens == 0
    assert choice.why == "drafts would not pay"
    (choice,) = plan(policy_of(), [retrieved()])
    assert (choice.num_tokens, choice.why) == (0, "nothing retrieved")


def test_rows_go_to_the_requests_whose_drafts_are_good() -> None:
    good, poor = request("good"), request("poor")
    first, second = plan(policy_of(), [retrieved(*[0.1] * 8, of=poor), retrieved(*[0.95] * 8, of=good)])
    assert first.num_tokens == 0
    assert second.num_tokens > 1


def test_a_request_without_drafts_is_not_slowed_by_more_than_others_gain() -> None:
    table = {1: 1.0, 4: 1.0, 8: 1.6, 20: 4.0}
    copying, without = request("copying"), [retrieved(of=request(str(i))) for i in range(3)]
    alone = plan(policy_of(table), [retrieved(*[0.99] * 15, of=copying)])[0].num_tokens
    beside = plan(policy_of(table), [retrieved(*[0.99] * 15, of=copying), *without])[0].num_tokens
    seconds = PassCosts(table)
    assert alone >= 7
    assert 0 < beside < alone
    slowed = seconds.seconds(PassLoad(4 + beside)) / seconds.seconds(PassLoad(4))
    assert slowed**4 <= 1.0 + 0.99 * beside, f"{beside} drafts for one make four requests {slowed} times as slow"


def test_alike_requests_get_alike_shares() -> None:
    table = {1: 1.0, 4: 1.1, 16: 2.4, 64: 9.0}
    drafts = [retrieved(*[0.95**i for i in range(1, 16)], of=request(str(i))) for i in range(4)]
    counts = [choice.num_tokens for choice in plan(policy_of(table), drafts)]
    assert max(counts) - min(counts) <= 1, counts
    assert min(counts) > 0


def test_under_load_only_what_is_nearly_certain_is_verified() -> None:
    table = {1: 1.0, 2: 1.0, 16: 1.2, 24: 2.4, 64: 8.0}
    alone = plan(policy_of(table), [retrieved(0.6, 0.4, 0.3)])[0].num_tokens
    crowded = plan(policy_of(table), [retrieved(0.6, 0.4, 0.3)], others=15)[0].num_tokens
    sure = plan(policy_of(table), [retrieved(0.98, 0.96, 0.95)], others=15)[0].num_tokens
    assert (alone, crowded, sure) == (3, 0, 0) or (alone == 3 and crowded == 0 < sure)


def test_beside_a_prompt_a_row_costs_what_it_costs_there() -> None:
    table = {1: 1.0, 8: 1.05, 64: 8.0}
    assert plan(policy_of(table), [retrieved(0.06)])[0].num_tokens == 1
    assert plan(policy_of(table), [retrieved(0.06)], prompt_rows=40)[0].num_tokens == 0
    assert plan(policy_of(table), [retrieved(0.5)], prompt_rows=40)[0].num_tokens == 1


def test_time_of_a_step_outside_its_pass_makes_drafts_worth_more() -> None:
    table = {1: 1.0, 16: 3.0}
    drafts = [retrieved(0.12)]
    policy = policy_of(table)
    assert plan(policy, drafts)[0].num_tokens == 0
    for _ in range(50):
        plan(policy, [], others=1)
        learn(policy, 1, 1.0, [outcome(drafts[0].request, rows=1, seconds=0.5)], whole=4.0)
        learn(policy, 1, 1.0, [outcome(drafts[0].request, rows=2, seconds=0.5)], whole=4.0)
    assert plan(policy, drafts)[0].num_tokens == 1


def test_a_sampled_row_costs_its_distribution_too() -> None:
    policy = policy_of({1: 1.0, 16: 1.0})
    sampled = Request("s", (1,), SamplingParams(temperature=1.0), 0, 1000)
    assert plan(policy, [retrieved(0.4, of=sampled)])[0].num_tokens == 1
    for _ in range(50):
        learn(policy, 1, 1.0, [outcome(sampled, rows=1, seconds=1.0)], whole=2.0)
        learn(policy, 1, 1.0, [outcome(sampled, rows=2, seconds=2.0)], whole=3.0)
    assert plan(policy, [retrieved(0.4, of=sampled)])[0].num_tokens == 0
    assert plan(policy, [retrieved(0.4)])[0].num_tokens == 1, "greedy rows cost no distribution"


class Run:
    """Steps of one policy with a model drafter whose tokens are accepted with a fixed probability."""

    def __init__(self, policy: AdaptivePolicy, *, accept: float, model_seconds: float, seed: int = 0) -> None:
        self.policy = policy
        self.model = Model()
        self.accept = accept
        self.model_seconds = model_seconds
        self.random = np.random.default_rng(seed)
        self.spent = self.plain = 0.0
        self.trace: list[int] = []

    def steps(self, count: int, requests: int = 1) -> None:
        policy, asked = self.policy, [request(str(i)) for i in range(requests)]
        for _ in range(count):
            choices = plan(policy, [self.model.draftable(each) for each in asked])
            depth = max((c.num_tokens for c in choices if c.by_model), default=0)
            drafting = depth * self.model_seconds
            rows = requests + sum(c.num_tokens for c in choices)
            outcomes, gained = [], 0
            for each, choice in zip(asked, choices, strict=True):
                accepted = int(sum(itertools.takewhile(bool, self.random.random(choice.num_tokens) < self.accept)))
                gained += 1 + accepted
                if choice.num_tokens:
                    self.model.observe(each, accepted, choice.num_tokens)
                outcomes.append(outcome(each, accepted=accepted, drafted=choice.num_tokens, gained=1 + accepted))
            seconds = PassCosts(FLAT).seconds(PassLoad(rows))
            self.plain += gained / requests * PassCosts(FLAT).seconds(PassLoad(requests))
            self.spent += seconds + drafting
            learn(policy, rows, seconds, outcomes, model=drafting)
            self.trace.append(max(c.num_tokens for c in choices))


def test_a_good_model_drafts_and_a_bad_one_loses_no_more_than_two_percent() -> None:
    good = Run(policy_of(model_seconds=0.1), accept=0.9, model_seconds=0.1)
    good.steps(300)
    assert good.plain / good.spent > 1.8
    for accept, model_seconds in ((0.05, 0.1), (0.5, 0.6), (0.7, 0.9), (0.0, 0.02)):
        bad = Run(policy_of(model_seconds=model_seconds), accept=accept, model_seconds=model_seconds)
        bad.steps(500)
        lost = bad.spent - bad.plain
        assert lost <= EXPLORATION_SHARE * bad.spent + 5.0, f"lost {lost} of {bad.spent} at {accept}"


def test_a_good_time_long_ago_pays_for_no_bad_one() -> None:
    run = Run(policy_of(model_seconds=0.1), accept=0.95, model_seconds=0.1)
    run.steps(1500)
    assert run.plain / run.spent > 1.5
    run.spent = run.plain = 0.0
    run.accept = 0.0
    run.steps(300)
    assert run.spent - run.plain <= EXPLORATION_SHARE * run.spent + 6.0, "a few steps' time, as at the start"


def test_a_model_that_costs_other_than_measured_is_found_out() -> None:
    run = Run(policy_of(model_seconds=0.01), accept=0.6, model_seconds=0.9)
    run.steps(600)
    assert run.trace[-100:].count(0) > 95


def test_what_did_not_pay_is_tried_again_now_and_then_and_taken_up_when_it_does() -> None:
    run = Run(policy_of(model_seconds=0.1), accept=0.0, model_seconds=0.1)
    run.steps(400)
    assert run.trace[-200:].count(0) > 190
    run.accept = 0.95
    run.steps(1200)
    assert run.trace[-50:].count(0) == 0


@pytest.mark.parametrize(("few", "accept"), [(2, 0.4), (2, 0.5), (3, 0.62), (3, 0.7)])
def test_load_that_swings_across_the_break_even_does_not_make_it_flap(few: int, accept: float) -> None:
    run = Run(policy_of(model_seconds=0.12), accept=accept, model_seconds=0.12)
    run.steps(200, requests=few)
    run.trace.clear()
    for _ in range(40):
        run.steps(5, requests=few)
        run.steps(5, requests=few + 1)
    on = [k > 0 for k in run.trace]
    assert 0 < sum(on) < len(on), "the load must swing across the break-even, or this tests nothing"
    switches = sum(one != other for one, other in itertools.pairwise(on))
    assert switches <= 84, f"{switches} switches, but the load changed 79 times and probes are rare: {run.trace}"


def test_a_model_not_yet_known_drafts_for_one_request_only() -> None:
    table = {1: 1.0, 64: 1.0}
    policy, model = policy_of(table, model_seconds=0.001), Model()
    asked = [request(str(i)) for i in range(4)]

    def drafts() -> list[Draftable]:
        return [model.draftable(each, uncomputed=5 - i) for i, each in enumerate(asked)]

    assert [choice.by_model for choice in plan(policy, drafts())] == [False, False, False, True]
    for _ in range(20):
        model.observe(asked[0], 3, 4)
        learn(policy, 4, 1.0, [outcome(asked[0], accepted=3, drafted=4, gained=4)])
    assert [choice.by_model for choice in plan(policy, drafts())] == [True] * 4


def test_text_that_the_model_has_yet_to_compute_is_paid_for() -> None:
    assert plan(policy_of(model_seconds=0.2), [Model().draftable()])[0].by_model
    far = Request("far", tuple(range(100)), SamplingParams(temperature=0.0), 0, 108)
    costs = DraftCosts(PassCosts({1: 0.2, 1000: 100.0}))
    policy = AdaptivePolicy(PassCosts(FLAT), num_speculative_tokens=15, model=ModelDrafting("model", costs, 8))
    assert not plan(policy, [Model().draftable(far, uncomputed=1000)])[0].num_tokens


def test_what_was_found_and_looks_good_leaves_the_model_idle() -> None:
    found = [0.97**i for i in range(1, 9)]
    (choice,) = plan(policy_of(model_seconds=0.3), [Model().draftable(found=found)])
    assert choice.num_tokens > 3
    assert not choice.by_model


def test_nodes_of_a_tree_are_judged_as_a_whole() -> None:
    model = ModelDrafting("model", DraftCosts(PassCosts({1: 0.05})), max_tokens=8, tree=True)
    policy = AdaptivePolicy(PassCosts(FLAT), num_speculative_tokens=8, model=model)
    (choice,) = plan(policy, [Model().draftable(max_tokens=8)])
    assert choice.by_model
    assert choice.num_tokens in (3, 7, 8), "a tile of rows, not the few nodes that a chain would get"


def test_a_model_is_not_tried_where_it_would_not_pay_if_it_were_better() -> None:
    for table, tried in (({1: 1.0, 64: 64.0}, False), (FLAT, True)):
        policy, model, asked = policy_of(table, model_seconds=0.1), Model(), request()
        for _ in range(20):
            model.observe(asked, 0, 1)
            learn(policy, 1, 1.0, [outcome(asked, drafted=1)])
        counts = []
        for _ in range(300):
            (choice,) = plan(policy, [model.draftable(asked)])
            learn(policy, 1, policy.passes.seconds(PassLoad(1)), [outcome(asked)])
            counts.append(choice.num_tokens)
        assert any(counts) == tried, counts


def test_with_many_requests_look_ups_without_result_are_made_less_often() -> None:
    without = [0] * 6
    asked = [request(str(i)) for i in range(6)]

    def asked_in(policy: AdaptivePolicy, steps: int, prob: float, others: int = 6) -> int:
        """In how many of ``steps`` steps the first request was asked for drafts."""
        count = 0
        for _ in range(steps):
            wanted = [i for i in range(6) if policy.budget(asked[i], without[i])]
            choices = plan(policy, [retrieved(prob, of=asked[i]) for i in wanted], others=others - len(wanted))
            for i, choice in zip(wanted, choices, strict=True):
                without[i] = 0 if choice.num_tokens else without[i] + 1
            count += 0 in wanted
        return count

    policy = policy_of({1: 1.0, 64: 64.0})
    assert asked_in(policy, 8, 0.01) == 8
    assert asked_in(policy, 48, 0.01) == 24
    assert asked_in(policy, 40, 0.01) == 10
    policy.passes = PassCosts({1: 1.0, 64: 1.0})
    assert asked_in(policy, 4, 0.9) >= 1, "somebody asks, finds something that pays"
    assert asked_in(policy, 8, 0.9) == 8, "and asks in every step again"
    alone = policy_of({1: 1.0, 64: 64.0})
    for _ in range(50):
        plan(alone, [retrieved(0.01, of=asked[0])], others=2)
        assert alone.budget(asked[0], 50) == 15


def with_prefill(accept: float, *, requests: int, prefill: float) -> tuple[float, float, int]:
    """Requests of 64 tokens one after another, whose text the model prefills in ``prefill`` seconds; a step takes one.

    Returns the seconds spent, those of plain decoding, and how many steps were drafted by the model.
    """
    costs = DraftCosts(PassCosts({1: 0.1, 101: 0.1 + prefill}))
    policy = AdaptivePolicy(
        PassCosts(FLAT), num_speculative_tokens=15, model=ModelDrafting("model", costs, max_tokens=8)
    )
    model, chance, spent, plain, drafted = Model(), np.random.default_rng(1), 0.0, 0.0, 0
    for number in range(requests):
        each = Request(str(number), tuple(range(100)), SamplingParams(temperature=0.0), 0, 164)
        uncomputed, left = 101, 64
        while left > 0:
            each.token_ids = list(range(164 - left))
            (choice,) = plan(policy, [model.draftable(each, uncomputed=uncomputed)])
            accepted = int(sum(itertools.takewhile(bool, chance.random(choice.num_tokens) < accept)))
            drafting = costs.seconds(1, choice.num_tokens, uncomputed - 1)
            uncomputed = 1 if choice.num_tokens else uncomputed + 1
            if choice.num_tokens:
                model.observe(each, accepted, choice.num_tokens)
            seconds = PassCosts(FLAT).seconds(PassLoad(1 + choice.num_tokens))
            told = outcome(each, accepted=accepted, drafted=choice.num_tokens, gained=1 + accepted)
            learn(policy, 1 + choice.num_tokens, seconds, [told], whole=seconds + drafting)
            spent, plain = spent + seconds + drafting, plain + 1.0 + accepted
            drafted += choice.num_tokens > 0
            left -= 1 + accepted
    return spent, plain, drafted


def test_a_prefill_of_the_model_that_pays_off_later_is_no_loss() -> None:
    """It takes far longer than may ever be lost at once; but half of an answer's time is won by it."""
    spent, plain, _ = with_prefill(0.9, requests=20, prefill=12.0)
    assert plain / spent > 1.3


def test_prefills_for_drafts_that_are_bad_are_soon_given_up() -> None:
    for prefill in (4.0, 12.0):
        spent, plain, drafted = with_prefill(0.1, requests=60, prefill=prefill)
        assert drafted > 0
        within = EXPLORATION_SHARE * spent + 3.0 + 3.0 + prefill + 2.0
        assert spent - plain <= within, "the exploration budget, outstanding prefills, and what was begun within them"


def test_the_model_prefills_no_text_before_decoding_has_lasted_half_as_long() -> None:
    costs = DraftCosts(PassCosts({1: 0.1, 101: 10.1}))
    policy = AdaptivePolicy(
        PassCosts(FLAT), num_speculative_tokens=15, model=ModelDrafting("model", costs, max_tokens=8)
    )
    each = Request("r", tuple(range(100)), SamplingParams(temperature=0.0), 0, 1000)
    by_model = []
    for tokens in range(8):
        each.token_ids = list(range(100 + tokens))
        (choice,) = plan(policy, [Model().draftable(each, uncomputed=100 + tokens)])
        by_model.append(choice.by_model)
        assert choice.why == ("" if choice.by_model else "drafts would not pay")
    assert by_model == [False] * 6 + [True] * 2
