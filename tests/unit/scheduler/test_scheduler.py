"""Who gets what in a step, without any model: budgets, shortage, order."""

from __future__ import annotations

import pytest

from outrider.errors import IntegrityError
from outrider.kv_cache.manager import KVCacheManager
from outrider.outputs import TokenSource
from outrider.request import Request, Status
from outrider.sampling_params import SamplingParams
from outrider.scheduler.scheduler import AGING_STEPS, Grant, Scheduler


def scheduler_of(
    *, k: int = 0, num_blocks: int = 100, block_size: int = 2, max_num_seqs: int = 8, budget: int = 64
) -> Scheduler[Request]:
    kv = KVCacheManager(num_blocks, block_size)
    return Scheduler(kv, lambda request: k, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget)


def add(
    scheduler: Scheduler[Request],
    name: str,
    prompt_len: int,
    *,
    max_tokens: int = 50,
    arrival: int | None = None,
    priority: int = 0,
    begin: int | None = None,
) -> Request:
    """A request whose prompt counts up from ``begin``, which is of no other request unless it is given."""
    first = 1000 * ord(name[0]) if begin is None else begin
    request = Request(
        name,
        tuple(range(first, first + prompt_len)),
        SamplingParams(max_tokens=max_tokens),
        noise_seed=0,
        max_total_tokens=prompt_len + max_tokens,
        arrival=len(scheduler.running) + len(scheduler.waiting) if arrival is None else arrival,
        priority=priority,
    )
    scheduler.add(request)
    return request


def commit(scheduler: Scheduler[Request], grant: Grant[Request], accepted: int = 0) -> None:
    tokens: list[tuple[int, TokenSource]] = []
    if grant.scores:
        tokens.extend((1, "accepted") for _ in range(accepted))
        tokens.append((2, "target"))
    scheduler.commit(grant, tokens)
    scheduler.check_integrity()


def step(scheduler: Scheduler[Request]) -> dict[str, tuple[int, int, bool]]:
    grants = scheduler.schedule()
    for grant in grants:
        commit(scheduler, grant)
    return {g.request.request_id: (g.num_tokens, g.max_drafts, g.scores) for g in grants}


def test_a_long_prompt_is_cut_into_chunks_and_decoding_goes_on_beside_it() -> None:
    scheduler = scheduler_of(k=2, budget=10)
    add(scheduler, "short", 3)
    assert step(scheduler) == {"short": (3, 0, True)}
    add(scheduler, "long", 20)
    assert step(scheduler) == {"short": (1, 2, True), "long": (7, 0, False)}
    assert step(scheduler) == {"short": (1, 2, True), "long": (7, 0, False)}
    assert step(scheduler) == {"short": (1, 2, True), "long": (6, 0, True)}
    assert step(scheduler) == {"short": (1, 2, True), "long": (1, 2, True)}


def test_a_long_prompt_leaves_younger_requests_their_next_token() -> None:
    scheduler = scheduler_of(k=0, budget=8)
    add(scheduler, "long", 30)
    add(scheduler, "second", 1)
    step(scheduler)
    assert step(scheduler)["long"] == (8, 0, False)
    scheduler = scheduler_of(k=3, budget=8)
    first, second = add(scheduler, "first", 1), add(scheduler, "second", 1)
    step(scheduler)
    first.token_ids.extend([5] * 30)  # as a resumed request has it
    first.num_computed_tokens = 0
    assert second.status is Status.RUNNING
    assert step(scheduler) == {"first": (7, 0, False), "second": (1, 0, True)}


def test_drafts_shrink_to_the_budget_before_any_request_is_left_out() -> None:
    scheduler = scheduler_of(k=4, budget=6)
    for name in "abc":
        add(scheduler, name, 1)
    step(scheduler)
    assert step(scheduler) == {"a": (1, 3, True), "b": (1, 0, True), "c": (1, 0, True)}


def test_drafts_leave_most_of_the_pass_to_a_prompt_that_waits() -> None:
    """Else a prompt would have to wait until those that decode, with a room of 15 drafts each, were done."""
    scheduler = scheduler_of(k=15, budget=64, max_num_seqs=6)
    for name in "abcd":
        add(scheduler, name, 3)
    step(scheduler)
    assert step(scheduler) == {"a": (1, 15, True), "b": (1, 15, True), "c": (1, 15, True), "d": (1, 15, True)}
    add(scheduler, "long", 80)
    assert step(scheduler) == {**dict.fromkeys("abcd", (1, 4, True)), "long": (44, 0, False)}
    assert step(scheduler)["long"] == (36, 0, True)
    for name in "xy":
        add(scheduler, name, 3)
    assert step(scheduler)["x"] == (3, 0, True)
    assert step(scheduler)["a"] == (1, 15, True), "the one that waits has no seat, so nothing is left free for it"


def test_drafts_shrink_to_the_blocks_before_anyone_is_preempted() -> None:
    scheduler = scheduler_of(k=4, num_blocks=5, block_size=2)
    add(scheduler, "a", 3)
    add(scheduler, "b", 3)
    step(scheduler)
    granted = step(scheduler)
    assert granted == {"a": (1, 2, True), "b": (1, 0, True)}
    assert scheduler.take_preempted() == []


def test_on_shortage_the_youngest_is_preempted_and_comes_back_first() -> None:
    scheduler = scheduler_of(num_blocks=4, block_size=2)
    old, young = add(scheduler, "old", 4), add(scheduler, "young", 4)
    add(scheduler, "waiting", 1)
    step(scheduler)
    assert set(step(scheduler)) == {"old"}
    assert scheduler.take_preempted() == [young]
    assert young.status is Status.WAITING
    assert young.num_computed_tokens == 0
    assert [r.request_id for r in scheduler.waiting] == ["young", "waiting"]
    assert old.num_preemptions == 0
    scheduler.finish(old, "abort")
    assert step(scheduler)["young"] == (3, 0, True), "all is computed again but for the block that nobody needed"


def test_the_last_allowed_token_is_never_drafted_for() -> None:
    scheduler = scheduler_of(k=5)
    add(scheduler, "a", 1, max_tokens=4)
    assert step(scheduler) == {"a": (1, 0, True)}, "the first token does not wait for drafts"
    assert step(scheduler) == {"a": (1, 2, True)}
    assert step(scheduler) == {"a": (1, 1, True)}
    assert step(scheduler) == {"a": (1, 0, True)}
    assert not scheduler.has_requests


def test_no_more_requests_than_allowed_run_and_the_next_follows_in_order() -> None:
    scheduler = scheduler_of(max_num_seqs=2)
    requests = [add(scheduler, name, 1, max_tokens=2, arrival=i) for i, name in enumerate("abcd")]
    assert list(step(scheduler)) == ["a", "b"]
    assert list(step(scheduler)) == ["a", "b"]
    assert list(step(scheduler)) == ["c", "d"]
    assert requests[0].finished


@pytest.mark.parametrize("accepted", range(5))
def test_commit_rolls_back_to_what_is_committed(accepted: int) -> None:
    kv = KVCacheManager(20, 1)
    scheduler: Scheduler[Request] = Scheduler(kv, lambda request: 4, max_num_seqs=1, max_num_batched_tokens=32)
    request = add(scheduler, "a", 3)
    step(scheduler)
    (grant,) = scheduler.schedule()
    assert len(kv.block_table("a")) == 3 + 1 + 4
    commit(scheduler, grant, accepted)
    assert request.num_tokens == 4 + accepted + 1
    assert request.num_computed_tokens == request.num_tokens - 1
    assert len(kv.block_table("a")) == request.num_computed_tokens


def test_a_finished_request_takes_no_token() -> None:
    scheduler = scheduler_of()
    request = add(scheduler, "a", 1)
    scheduler.finish(request, "abort")
    with pytest.raises(IntegrityError, match="finished request 'a'"):
        request.append(1, "target")
    scheduler.finish(request, "error")
    assert request.finish_reason == "abort", "the first reason stays"


def test_a_request_of_higher_priority_overtakes_and_takes_a_seat() -> None:
    scheduler = scheduler_of(max_num_seqs=1)
    low = add(scheduler, "low", 2, arrival=0, priority=1)
    step(scheduler)
    add(scheduler, "later", 2, arrival=1, priority=1)
    add(scheduler, "high", 2, arrival=2, priority=0, max_tokens=2)
    assert list(step(scheduler)) == ["high"]
    assert low.num_preemptions == 1
    step(scheduler)
    assert list(step(scheduler)) == ["low"], "who was preempted goes on before those that came after"


def test_equal_priority_takes_no_seat() -> None:
    scheduler = scheduler_of(max_num_seqs=1)
    add(scheduler, "a", 2)
    step(scheduler)
    add(scheduler, "b", 2)
    assert list(step(scheduler)) == ["a"]


def test_low_priority_is_served_in_the_end_however_many_urgent_ones_come() -> None:
    scheduler = scheduler_of(max_num_seqs=1)
    low = add(scheduler, "z", 1, arrival=0, priority=2, max_tokens=4)
    for count in range(10 * AGING_STEPS):
        add(scheduler, f"{chr(200 + count)}", 1, arrival=1 + count, priority=0, max_tokens=1)
        step(scheduler)
        if low.finished:
            break
    assert low.finished
    assert count < 2 * AGING_STEPS + 8, "two levels of priority are two times AGING_STEPS"


def test_a_request_that_begins_as_another_did_computes_only_the_rest() -> None:
    scheduler = scheduler_of(block_size=4)
    add(scheduler, "a", 10, begin=1)
    step(scheduler)
    second = add(scheduler, "b", 12, begin=1)
    assert step(scheduler)["b"] == (4, 0, True)
    assert second.metrics.num_cached_tokens == 8
    third = add(scheduler, "c", 8, begin=1)
    assert step(scheduler)["c"] == (4, 0, True), "the last token is always computed, so a full hit ends a block before"
    assert third.metrics.num_cached_tokens == 4


def test_prompt_logprobs_need_every_row_so_nothing_is_reused() -> None:
    scheduler = scheduler_of(block_size=2)
    add(scheduler, "a", 9, begin=1)
    step(scheduler)
    request = add(scheduler, "b", 9, begin=1)
    request.params = SamplingParams(prompt_logprobs=0)
    assert step(scheduler)["b"] == (9, 0, True)


def test_a_request_that_finds_no_room_holds_nothing_while_it_waits() -> None:
    scheduler = scheduler_of(num_blocks=4, block_size=2)
    add(scheduler, "a", 5, begin=1)
    step(scheduler)
    waiting = add(scheduler, "b", 9, begin=1)
    for _ in range(2):
        assert "b" not in step(scheduler)
        scheduler.check_integrity()
        assert waiting.num_computed_tokens == 0
