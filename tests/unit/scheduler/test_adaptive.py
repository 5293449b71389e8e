"""The controller over cost tables and outcomes that a test makes up: what pays is drafted, what does not is not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.request import Request
from outrider.sampling_params import SamplingParams
from outrider.scheduler.adaptive import EXPLORATION_SHARE, AdaptiveSpeculation, ModelDrafting
from outrider.scheduler.costs import DraftCosts, Load, PassCosts
from outrider.scheduler.speculation import RESTING, Choice, Draftable

FLAT = {1: 1.0, 4: 1.1, 8: 1.6, 16: 3.0, 32: 6.0}
"""Seconds of a pass by rows: four rows nearly for the price of one, then more and more."""


def request(name: str = "r", tokens: int = 100) -> Request:
    return Request(name, tuple(range(tokens)), SamplingParams(temperature=0.0), 0, 100_000)


def retrieved(*survival: float, of: Request | None = None, behind: int | None = None) -> Draftable:
    return Draftable(of or request(), 15, survival, behind)


def controller(
    table: dict[int, float] | None = None, *, cap: int = 15, model_seconds: float | None = None
) -> AdaptiveSpeculation:
    model = None
    if model_seconds is not None:
        costs = DraftCosts(PassCosts({1: model_seconds, 16: 2.0 * model_seconds}))
        model = ModelDrafting("model", costs, max_tokens=8)
    return AdaptiveSpeculation(PassCosts(table or FLAT), num_speculative_tokens=cap, model=model)


def plan(
    speculation: AdaptiveSpeculation, drafts: Sequence[Draftable], *, others: int = 0, prompt_rows: int = 0
) -> list[Choice]:
    decoding = [draft.request for draft in drafts] + [request(f"other {i}") for i in range(others)]
    speculation.begin_step(decoding, Load(len(decoding)), Load(prompt_rows, requests=min(prompt_rows, 1)))
    return speculation.plan(drafts)


def tokens_per_second(table: dict[int, float], rows: int, accepted: float) -> float:
    return (1.0 + accepted) / PassCosts(table).seconds(Load(rows))


def settle(speculation: AdaptiveSpeculation, drafts: Sequence[Draftable]) -> list[Choice]:
    """Plan and live through the same step until the rate has settled; each draft comes out as its survival says."""
    for _ in range(200):
        choices = plan(speculation, drafts)
        rows = len(drafts) + sum(choice.num_tokens for choice in choices)
        seconds = speculation.passes.seconds(Load(rows))
        gained = len(drafts) + sum(choice.expected for choice in choices)
        speculation.end_step(Load(rows), seconds, seconds, gained)  # type: ignore[arg-type]
    return choices


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.05, 0.99), min_size=15, max_size=15),
    st.sampled_from([FLAT, {1: 1.0, 16: 1.0}, {1: 1.0, 2: 2.0}, {1: 1.0, 16: 2.5}]),
)
def test_k_is_the_one_of_most_tokens_per_second(rates: list[float], table: dict[int, float]) -> None:
    survival = np.cumprod(rates)
    speeds = [tokens_per_second(table, 1 + k, float(survival[:k].sum())) for k in range(16)]
    (choice,) = settle(controller(table), [retrieved(*survival.tolist())])
    chosen = speeds[choice.num_tokens]
    assert chosen >= 0.95 * max(speeds), (
        f"K={choice.num_tokens} gives {chosen}, the best is {np.argmax(speeds)}: {speeds}"
    )
    assert choice.expected == pytest.approx(float(survival[: choice.num_tokens].sum()))


def test_where_a_row_costs_as_much_as_a_pass_nothing_is_drafted() -> None:
    (choice,) = plan(controller({1: 1.0, 2: 2.0}), [retrieved(0.9, 0.8, 0.7)])
    assert choice.num_tokens == 0
    assert choice.why == "drafts would not pay"
    (choice,) = plan(controller(), [retrieved()])
    assert (choice.num_tokens, choice.why) == (0, "nothing retrieved")


def test_rows_go_to_the_requests_whose_drafts_are_good() -> None:
    good, poor = request("good"), request("poor")
    first, second = plan(controller(), [retrieved(*[0.1] * 8, of=poor), retrieved(*[0.95] * 8, of=good)])
    assert first.num_tokens == 0
    assert second.num_tokens > 1


def test_a_request_without_drafts_is_not_slowed_by_more_than_others_gain() -> None:
    table = {1: 1.0, 4: 1.0, 8: 1.6, 20: 4.0}
    copying, without = request("copying"), [retrieved(of=request(str(i))) for i in range(3)]
    alone = plan(controller(table), [retrieved(*[0.99] * 15, of=copying)])[0].num_tokens
    beside = plan(controller(table), [retrieved(*[0.99] * 15, of=copying), *without])[0].num_tokens
    seconds = PassCosts(table)
    assert alone >= 7
    assert 0 < beside < alone
    slowed = seconds.seconds(Load(4 + beside)) / seconds.seconds(Load(4))
    assert slowed**4 <= 1.0 + 0.99 * beside, f"{beside} drafts for one make four requests {slowed} times as slow"


def test_alike_requests_get_alike_shares() -> None:
    table = {1: 1.0, 4: 1.1, 16: 2.4, 64: 9.0}
    drafts = [retrieved(*[0.95**i for i in range(1, 16)], of=request(str(i))) for i in range(4)]
    counts = [choice.num_tokens for choice in plan(controller(table), drafts)]
    assert max(counts) - min(counts) <= 1, counts
    assert min(counts) > 0


def test_under_load_only_what_is_nearly_certain_is_verified() -> None:
    table = {1: 1.0, 2: 1.0, 16: 1.2, 24: 2.4, 64: 8.0}
    alone = plan(controller(table), [retrieved(0.6, 0.4, 0.3)])[0].num_tokens
    crowded = plan(controller(table), [retrieved(0.6, 0.4, 0.3)], others=15)[0].num_tokens
    sure = plan(controller(table), [retrieved(0.98, 0.96, 0.95)], others=15)[0].num_tokens
    assert (alone, crowded, sure) == (3, 0, 0) or (alone == 3 and crowded == 0 < sure)


def test_beside_a_prompt_a_row_costs_what_it_costs_there() -> None:
    table = {1: 1.0, 8: 1.05, 64: 8.0}
    assert plan(controller(table), [retrieved(0.06)])[0].num_tokens == 1
    assert plan(controller(table), [retrieved(0.06)], prompt_rows=40)[0].num_tokens == 0
    assert plan(controller(table), [retrieved(0.5)], prompt_rows=40)[0].num_tokens == 1


def test_what_every_step_takes_beside_its_pass_makes_drafts_worth_more() -> None:
    table = {1: 1.0, 16: 3.0}
    drafts = [retrieved(0.12)]
    speculation = controller(table)
    assert plan(speculation, drafts)[0].num_tokens == 0
    for _ in range(50):
        speculation.begin_step([drafts[0].request], Load(1), Load())
        speculation.observe_rows(drafts[0].request, 1, 0.5)
        speculation.observe_rows(drafts[0].request, 2, 0.5)
        speculation.end_step(Load(1), 1.0, 4.0, 1)
    assert plan(speculation, drafts)[0].num_tokens == 1


def test_a_sampled_row_costs_its_distribution_too() -> None:
    speculation = controller({1: 1.0, 16: 1.0})
    sampled = Request("s", (1,), SamplingParams(temperature=1.0), 0, 1000)
    assert plan(speculation, [retrieved(0.4, of=sampled)])[0].num_tokens == 1
    for _ in range(50):
        speculation.observe_rows(sampled, 1, 1.0)
        speculation.observe_rows(sampled, 2, 2.0)
    assert plan(speculation, [retrieved(0.4, of=sampled)])[0].num_tokens == 0
    assert plan(speculation, [retrieved(0.4)])[0].num_tokens == 1, "greedy rows cost no distribution"


class Run:
    """Steps of one controller with a model drafter whose tokens are accepted with a fixed chance."""

    def __init__(self, speculation: AdaptiveSpeculation, *, accept: float, model_seconds: float, seed: int = 0) -> None:
        self.speculation = speculation
        self.accept = accept
        self.model_seconds = model_seconds
        self.random = np.random.default_rng(seed)
        self.spent = self.plain = 0.0
        self.trace: list[int] = []

    def steps(self, count: int, requests: int = 1) -> None:
        speculation, asked = self.speculation, [request(str(i)) for i in range(requests)]
        for _ in range(count):
            choices = plan(speculation, [retrieved(of=each, behind=1) for each in asked])
            depth = max((c.num_tokens for c in choices if c.by_model), default=0)
            drafting = depth * self.model_seconds
            rows = requests + sum(c.num_tokens for c in choices)
            gained = requests
            for each, choice in zip(asked, choices, strict=True):
                accepted = sum(itertools.takewhile(bool, self.random.random(choice.num_tokens) < self.accept))
                gained += int(accepted)
                if choice.num_tokens:
                    speculation.observe_outcome(each, "model", int(accepted), choice.num_tokens, None)
            if depth:
                speculation.observe_drafting(drafting)
            seconds = PassCosts(FLAT).seconds(Load(rows))
            self.plain += gained / requests * PassCosts(FLAT).seconds(Load(requests))
            self.spent += seconds + drafting
            speculation.end_step(Load(rows), seconds, seconds + drafting, gained)
            self.trace.append(max(c.num_tokens for c in choices))


def test_a_good_model_drafts_and_a_bad_one_loses_no_more_than_two_percent() -> None:
    good = Run(controller(model_seconds=0.1), accept=0.9, model_seconds=0.1)
    good.steps(300)
    assert good.plain / good.spent > 1.8
    for accept, model_seconds in ((0.05, 0.1), (0.5, 0.6), (0.7, 0.9), (0.0, 0.02)):
        bad = Run(controller(model_seconds=model_seconds), accept=accept, model_seconds=model_seconds)
        bad.steps(500)
        lost = bad.spent - bad.plain
        assert lost <= EXPLORATION_SHARE * bad.spent + 5.0, f"lost {lost} of {bad.spent} at {accept}"


def test_a_good_time_long_ago_pays_for_no_bad_one() -> None:
    run = Run(controller(model_seconds=0.1), accept=0.95, model_seconds=0.1)
    run.steps(1500)
    assert run.plain / run.spent > 1.5
    run.spent = run.plain = 0.0
    run.accept = 0.0
    run.steps(300)
    assert run.spent - run.plain <= EXPLORATION_SHARE * run.spent + 6.0, "a few steps' time, as at the start"


def test_a_model_that_costs_other_than_measured_is_found_out() -> None:
    run = Run(controller(model_seconds=0.01), accept=0.6, model_seconds=0.9)
    run.steps(600)
    assert run.trace[-100:].count(0) > 95


def test_what_did_not_pay_is_tried_again_now_and_then_and_taken_up_when_it_does() -> None:
    run = Run(controller(model_seconds=0.1), accept=0.0, model_seconds=0.1)
    run.steps(400)
    assert run.trace[-200:].count(0) > 190
    run.accept = 0.95
    run.steps(1200)
    assert run.trace[-50:].count(0) == 0


@pytest.mark.parametrize(("few", "accept"), [(2, 0.4), (2, 0.5), (3, 0.62), (3, 0.7)])
def test_load_that_swings_across_the_break_even_does_not_make_it_flap(few: int, accept: float) -> None:
    run = Run(controller(model_seconds=0.12), accept=accept, model_seconds=0.12)
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
    speculation = controller(table, model_seconds=0.001)
    drafts = [retrieved(of=request(str(i)), behind=5 - i) for i in range(4)]
    assert [choice.by_model for choice in plan(speculation, drafts)] == [False, False, False, True]
    for _ in range(20):
        speculation.observe_outcome(drafts[0].request, "model", 3, 4, None)
    assert [choice.by_model for choice in plan(speculation, drafts)] == [True] * 4


def test_text_that_the_model_has_yet_to_read_is_paid_for() -> None:
    speculation = controller(model_seconds=0.2)
    near = plan(speculation, [retrieved(behind=1)])[0]
    assert near.by_model
    far = Request("far", tuple(range(100)), SamplingParams(temperature=0.0), 0, 108)
    costs = DraftCosts(PassCosts({1: 0.2, 1000: 100.0}))
    speculation = AdaptiveSpeculation(
        PassCosts(FLAT), num_speculative_tokens=15, model=ModelDrafting("model", costs, 8)
    )
    assert not plan(speculation, [retrieved(of=far, behind=1000)])[0].num_tokens


def test_what_was_found_and_looks_good_leaves_the_model_idle() -> None:
    (choice,) = plan(controller(model_seconds=0.3), [retrieved(*[0.97**i for i in range(1, 9)], behind=1)])
    assert choice.num_tokens > 3
    assert not choice.by_model


def test_nodes_of_a_tree_are_judged_as_a_whole() -> None:
    model = ModelDrafting("model", DraftCosts(PassCosts({1: 0.05})), max_tokens=8, tree=True)
    speculation = AdaptiveSpeculation(PassCosts(FLAT), num_speculative_tokens=8, model=model)
    (choice,) = plan(speculation, [Draftable(request(), 8, (), 1)])
    assert choice.by_model
    assert choice.num_tokens in (3, 7, 8), "a tile of rows, not the few nodes that a chain would get"


def test_a_model_is_not_tried_where_it_would_not_pay_if_it_were_better() -> None:
    for table, tried in (({1: 1.0, 64: 64.0}, False), (FLAT, True)):
        speculation = controller(table, model_seconds=0.1)
        asked = request()
        for _ in range(20):
            speculation.observe_outcome(asked, "model", 0, 1, None)
        counts = []
        for _ in range(300):
            (choice,) = plan(speculation, [retrieved(of=asked, behind=1)])
            seconds = speculation.passes.seconds(Load(1))
            speculation.end_step(Load(1), seconds, seconds, 1)
            counts.append(choice.num_tokens)
        assert any(counts) == tried, counts


def test_in_a_crowd_looking_rests_where_it_was_fruitless() -> None:
    def asked_in(steps: int, survival: float) -> int:
        """In how many of so many steps the first request was asked for drafts."""
        count = 0
        for _ in range(steps):
            wanted = [each for each in crowd if speculation.num_draft_tokens(each)]
            for each in crowd:
                assert speculation.why_none(each) == ("" if each in wanted else RESTING)
            plan(speculation, [retrieved(survival, of=each) for each in wanted], others=6 - len(wanted))
            count += crowd[0] in wanted
        return count

    speculation, crowd = controller({1: 1.0, 64: 64.0}), [request(str(i)) for i in range(6)]
    assert asked_in(8, 0.01) == 8
    assert asked_in(48, 0.01) == 24
    assert asked_in(40, 0.01) == 10
    speculation.passes = PassCosts({1: 1.0, 64: 1.0})
    assert asked_in(4, 0.9) >= 1, "somebody asks, finds something that pays"
    assert asked_in(8, 0.9) == 8, "and asks in every step again"
    speculation.passes = PassCosts({1: 1.0, 64: 64.0})
    asked_in(100, 0.01)
    speculation.forget("0")
    assert speculation.num_draft_tokens(crowd[0]) == 15
    alone = controller({1: 1.0, 64: 64.0})
    for _ in range(50):
        plan(alone, [retrieved(0.01, of=crowd[0])], others=2)
        assert alone.num_draft_tokens(crowd[0]) == 15


def with_reading(accept: float, *, requests: int, reading: float) -> tuple[float, float, int]:
    """Requests of 64 tokens one after another, whose text takes the model ``reading`` seconds; a step takes one.

    Returns the seconds spent, those that plain decoding takes, and how many steps were drafted by the model.
    """
    costs = DraftCosts(PassCosts({1: 0.1, 101: 0.1 + reading}))
    model = ModelDrafting("model", costs, max_tokens=8)
    speculation = AdaptiveSpeculation(PassCosts(FLAT), num_speculative_tokens=15, model=model)
    chance, spent, plain, drafted = np.random.default_rng(1), 0.0, 0.0, 0
    for number in range(requests):
        each = Request(str(number), tuple(range(100)), SamplingParams(temperature=0.0), 0, 164)
        behind, left = 101, 64
        while left > 0:
            each.token_ids = list(range(164 - left))
            (choice,) = plan(speculation, [retrieved(of=each, behind=behind)])
            accepted = sum(itertools.takewhile(bool, chance.random(choice.num_tokens) < accept))
            drafting = costs.seconds(1, choice.num_tokens, behind - 1)
            behind = 1 if choice.num_tokens else behind + 1
            if choice.num_tokens:
                speculation.observe_outcome(each, "model", int(accepted), choice.num_tokens, None)
            seconds = PassCosts(FLAT).seconds(Load(1 + choice.num_tokens))
            speculation.end_step(Load(1 + choice.num_tokens), seconds, seconds + drafting, 1 + int(accepted))
            spent, plain = spent + seconds + drafting, plain + 1.0 + int(accepted)
            drafted += choice.num_tokens > 0
            left -= 1 + int(accepted)
        speculation.forget(each.request_id)
    return spent, plain, drafted


def test_text_to_be_read_first_is_an_investment_and_no_loss() -> None:
    """It takes far longer than may ever be lost at once; but half of an answer's time is won by it."""
    spent, plain, _ = with_reading(0.9, requests=20, reading=12.0)
    assert plain / spent > 1.3


def test_reading_for_drafts_that_are_bad_is_soon_given_up() -> None:
    for reading in (4.0, 12.0):
        spent, plain, drafted = with_reading(0.1, requests=60, reading=reading)
        assert drafted > 0
        within = EXPLORATION_SHARE * spent + 3.0 + 3.0 + reading + 2.0
        assert spent - plain <= within, "credit, debt, and what was begun within them"


def test_a_text_is_not_read_before_the_answer_has_taken_half_as_long() -> None:
    costs = DraftCosts(PassCosts({1: 0.1, 101: 10.1}))
    speculation = AdaptiveSpeculation(
        PassCosts(FLAT), num_speculative_tokens=15, model=ModelDrafting("model", costs, max_tokens=8)
    )
    each = Request("r", tuple(range(100)), SamplingParams(temperature=0.0), 0, 1000)
    read = []
    for tokens in range(8):
        each.token_ids = list(range(100 + tokens))
        (choice,) = plan(speculation, [retrieved(of=each, behind=100 + tokens)])
        read.append(choice.by_model)
        assert choice.why == ("" if choice.by_model else "drafts would not pay")
    assert read == [False] * 6 + [True] * 2
