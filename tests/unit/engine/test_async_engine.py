"""AsyncEngine: whatever callers do, answers are the synchronous engine's, blocks come back and nothing hangs."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outrider.engine.async_engine import AsyncEngine, Submission
from outrider.engine.engine import Engine
from outrider.errors import (
    EngineUnavailableError,
    IntegrityError,
    InvalidRequestError,
    QueueFullError,
    RequestFailedError,
)
from outrider.outputs import RequestOutput, StreamPiece
from outrider.request import Request
from outrider.sampling_params import SamplingParams
from tests.toy import random_table
from tests.unit.engine.helpers import GREEDY, oracle, run, toy_engine

VOCAB = 7
DISTRIBUTION = random_table(VOCAB, seed=1, sharpness=3.0)
LONG = SamplingParams(temperature=0.0, max_tokens=200)
TIMEOUT_S = 20.0


class Gate:
    """A distribution that waits: the forward pass does not return before ``opened``."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Event()

    def distribution(self, context: tuple[int, ...]) -> NDArray[np.float64]:
        self.entered.set()
        assert self.opened.wait(TIMEOUT_S)
        return DISTRIBUTION(context)


def slow_probabilities(context: tuple[int, ...]) -> NDArray[np.float64]:
    """So slow that no long answer ends before its reader does something."""
    time.sleep(0.003)
    return DISTRIBUTION(context)


class Watcher:
    """Records what an observer is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def started(self, request: Request, queued_s: float) -> None:
        assert queued_s >= 0.0
        self.events.append(("started", request.request_id))

    def gained(self, request: Request, piece: StreamPiece) -> None:
        self.events.append(("gained", request.request_id))

    def ended(self, request: Request) -> None:
        self.events.append(("ended", request.request_id))


def engine_of(distribution: Any = DISTRIBUTION, **settings: Any) -> Engine:
    return toy_engine(distribution, oracle(DISTRIBUTION, vocab_size=VOCAB), vocab_size=VOCAB, **settings)


def using(
    body: Callable[[AsyncEngine], Coroutine[Any, Any, None]], engine: Engine | None = None, **settings: Any
) -> AsyncEngine:
    """Run ``body`` with an engine that is closed afterwards; nothing may be left of any request."""
    asynchronous = AsyncEngine(engine or engine_of(), **settings)

    async def bounded() -> None:
        await asyncio.wait_for(body(asynchronous), TIMEOUT_S)

    try:
        asyncio.run(bounded())
    finally:
        asynchronous.close()
    assert not asynchronous._thread.is_alive()
    kv = asynchronous.engine.runner.kv
    assert asynchronous.load.num_running == asynchronous.load.num_waiting == 0
    assert kv.num_free_blocks == kv.num_blocks
    return asynchronous


def tokens_of(output: RequestOutput | None) -> tuple[int, ...]:
    assert output is not None
    return output.outputs[0].token_ids


def solo(prompt: Sequence[int], params: SamplingParams = GREEDY) -> tuple[int, ...]:
    return _solo(tuple(prompt), params.model_dump_json())


@cache
def _solo(prompt: tuple[int, ...], params: str) -> tuple[int, ...]:
    return tokens_of(run(engine_of(), [prompt], SamplingParams.model_validate_json(params))[0])


async def idle(engine: AsyncEngine) -> None:
    while engine.load.num_running or engine.load.num_waiting:
        await asyncio.sleep(0.001)


def test_a_stream_gives_the_synchronous_engines_pieces() -> None:
    async def body(engine: AsyncEngine) -> None:
        pieces = [piece async for piece in engine.stream([1, 2], GREEDY)]
        assert tuple(token for piece in pieces for token in piece.token_ids) == solo([1, 2])
        assert pieces[-1].finish_reason == "length"
        assert all(piece.finish_reason is None and piece.output is None for piece in pieces[:-1])
        assert tokens_of(pieces[-1].output) == solo([1, 2])

    using(body)


def test_many_callers_get_the_answers_they_would_get_alone() -> None:
    async def body(engine: AsyncEngine) -> None:
        prompts = [[index % VOCAB, index // VOCAB] for index in range(30)]
        outputs = await asyncio.gather(*(engine.generate(prompt, GREEDY) for prompt in prompts))
        assert [tokens_of(output) for output in outputs] == [solo(prompt) for prompt in prompts]

    using(body, engine_of(max_num_seqs=4))


def test_n_answers_come_as_one_output_with_the_seeds_of_the_offline_engine() -> None:
    params = SamplingParams(seed=5, n=3, max_tokens=8)

    async def body(engine: AsyncEngine) -> None:
        output = await engine.generate([1], params)
        assert [each.index for each in output.outputs] == [0, 1, 2]
        assert output.outputs[0].token_ids == solo([1], SamplingParams(seed=5, max_tokens=8))
        assert len({each.token_ids for each in output.outputs}) > 1

    using(body)


def test_jobs_submitted_together_come_with_their_index() -> None:
    async def body(engine: AsyncEngine) -> None:
        answers = await engine.submit([([1], GREEDY), ([2], GREEDY)])
        texts = ["", ""]
        async for index, piece in answers:
            texts[index] += piece.text
        assert [output.outputs[0].text for output in await answers.result()] == texts
        assert [tokens_of(output) for output in answers.outputs] == [solo([1]), solo([2])]

    using(body)


def test_a_request_that_does_not_fit_is_refused_and_takes_its_group_with_it() -> None:
    async def body(engine: AsyncEngine) -> None:
        with pytest.raises(InvalidRequestError, match="prompt token 0 is 99"):
            await engine.submit([([1], LONG), ([99], LONG)])
        await idle(engine)
        assert tokens_of(await engine.generate([1], GREEDY)) == solo([1])

    using(body)


def test_more_answers_than_ever_fit_are_a_mistake_of_the_request() -> None:
    async def body(engine: AsyncEngine) -> None:
        with pytest.raises(InvalidRequestError, match="5 answers at once, but this engine holds at most 4") as caught:
            await engine.submit([([1], GREEDY)] * 5)
        assert caught.value.param == "n"

    using(body, engine_of(max_num_seqs=2), max_waiting=2)


def test_lower_priority_goes_first() -> None:
    gate = Gate()

    async def body(engine: AsyncEngine) -> None:
        first = await engine.submit([([1], GREEDY)])
        while not gate.entered.is_set():
            await asyncio.sleep(0.001)
        done: list[int] = []

        async def finish(prompt: int, priority: int) -> None:
            answers = await engine.submit([([prompt], GREEDY)], priority=priority)
            await answers.result()
            done.append(priority)

        tasks = [asyncio.create_task(finish(prompt, priority)) for prompt, priority in ((2, 2), (3, 1), (4, 0))]
        await asyncio.sleep(0.01)
        gate.opened.set()
        await asyncio.gather(first.result(), *tasks)
        assert done == [0, 1, 2]

    using(body, engine_of(gate.distribution, max_num_seqs=1), max_waiting=4)


def test_a_full_queue_refuses_and_takes_again_once_there_is_room() -> None:
    gate = Gate()

    async def body(engine: AsyncEngine) -> None:
        held = [await engine.submit([([1], GREEDY)])]
        while not gate.entered.is_set():
            await asyncio.sleep(0.001)
        waiting = [asyncio.create_task(engine.submit([([2], GREEDY)])) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="3 requests are running or waiting and 3 is the most"):
            await engine.submit([([3], GREEDY)])
        assert engine.load.num_waiting == 2
        gate.opened.set()
        held += await asyncio.gather(*waiting)
        await asyncio.gather(*(answers.result() for answers in held))
        assert tokens_of(await engine.generate([3], GREEDY)) == solo([3])

    using(body, engine_of(gate.distribution, max_num_seqs=1), max_waiting=2)


def test_one_request_is_told_of_as_one() -> None:
    gate = Gate()

    async def body(engine: AsyncEngine) -> None:
        held = await engine.submit([([1], GREEDY)])
        with pytest.raises(QueueFullError, match="^1 request is running or waiting and 1 is the most; try later$"):
            await engine.submit([([2], GREEDY)])
        gate.opened.set()
        await held.result()

    using(body, engine_of(gate.distribution, max_num_seqs=1), max_waiting=0)


async def _close_stream(engine: AsyncEngine) -> None:
    stream = engine.stream([1], LONG)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


async def _cancel_reader(engine: AsyncEngine) -> None:
    task = asyncio.create_task(engine.generate([1], LONG))
    while not engine.load.num_running:
        await asyncio.sleep(0.0005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _abort_answers(engine: AsyncEngine) -> None:
    answers = await engine.submit([([1], LONG), ([2], LONG)])
    answers.abort()
    outputs = await answers.result()
    assert [output.outputs[0].finish_reason for output in outputs] == ["abort", "abort"]


async def _lose_answers(engine: AsyncEngine) -> None:
    answers: Submission | None = await engine.submit([([1], LONG)])
    assert answers is not None
    del answers
    gc.collect()


@pytest.mark.parametrize("leave", [_close_stream, _cancel_reader, _abort_answers, _lose_answers])
def test_whoever_leaves_gives_the_blocks_back_and_the_others_go_on(
    leave: Callable[[AsyncEngine], Coroutine[Any, Any, None]],
) -> None:
    async def body(engine: AsyncEngine) -> None:
        other = asyncio.create_task(engine.generate([3], GREEDY))
        await leave(engine)
        assert tokens_of(await other) == solo([3])
        await idle(engine)
        assert engine.engine.runner.kv.num_free_blocks == engine.engine.runner.kv.num_blocks

    using(body, engine_of(slow_probabilities, k=0))


def test_cancelling_before_the_engine_took_the_request_on_leaves_nothing() -> None:
    gate = Gate()

    async def body(engine: AsyncEngine) -> None:
        first = await engine.submit([([1], GREEDY)])
        while not gate.entered.is_set():
            await asyncio.sleep(0.001)
        second = asyncio.create_task(engine.submit([([2], LONG)]))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.opened.set()
        await first.result()
        await idle(engine)

    using(body, engine_of(gate.distribution))


def test_a_reader_who_does_not_read_holds_up_nobody() -> None:
    async def body(engine: AsyncEngine) -> None:
        unread = await engine.submit([([1], GREEDY)])
        assert tokens_of(await engine.generate([2], GREEDY)) == solo([2])
        await idle(engine)
        (output,) = await unread.result()
        assert tokens_of(output) == solo([1])

    using(body)


def test_callers_may_sit_in_event_loops_of_their_own() -> None:
    async def body(engine: AsyncEngine) -> None:
        def elsewhere(token: int) -> tuple[int, ...]:
            return tokens_of(asyncio.run(engine.generate([token], GREEDY)))

        found = await asyncio.gather(*(asyncio.to_thread(elsewhere, token) for token in range(4)))
        assert found == [solo([token]) for token in range(4)]

    using(body)


def test_requests_of_a_loop_that_closed_are_ended() -> None:
    gate = Gate()
    kept: list[Submission] = []
    engine = AsyncEngine(engine_of(gate.distribution, k=0))

    async def leave() -> None:
        kept.append(await engine.submit([([1], LONG)]))

    asyncio.run(leave())
    gate.opened.set()
    deadline = time.monotonic() + TIMEOUT_S
    while (engine.load.num_running or engine.load.num_waiting) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert engine.load.num_running == 0
    engine.close()


def test_a_step_that_raises_ends_what_is_there_and_the_engine_goes_on() -> None:
    engine = engine_of()
    original, calls = engine.step, iter(range(1000))

    def step() -> Any:
        if next(calls) == 1:
            raise RuntimeError("out of luck")
        return original()

    engine.step = step  # type: ignore[method-assign]

    async def body(asynchronous: AsyncEngine) -> None:
        with pytest.raises(RequestFailedError, match="the engine's step failed: RuntimeError: out of luck"):
            async for _ in asynchronous.stream([1], LONG):
                pass
        assert asynchronous.failure is None
        assert tokens_of(await asynchronous.generate([1], GREEDY)) == solo([1])

    using(body, engine)


def test_an_engine_whose_blocks_do_not_add_up_says_so_and_refuses() -> None:
    engine = engine_of()

    def step() -> Any:
        raise RuntimeError("out of luck")

    def check() -> None:
        raise IntegrityError("a block is missing")

    engine.step, engine.check_integrity = step, check  # type: ignore[method-assign]

    async def body(asynchronous: AsyncEngine) -> None:
        output = await asynchronous.generate([1], GREEDY)
        assert output.error is not None
        assert "out of luck" in output.error
        while asynchronous.failure is None:
            await asyncio.sleep(0.001)
        with pytest.raises(EngineUnavailableError, match="a block is missing"):
            await asynchronous.generate([1], GREEDY)

    using(body, engine)


def test_even_where_requests_can_not_be_ended_their_callers_hear_of_it() -> None:
    engine = engine_of()

    def broken(*arguments: object) -> Any:
        raise IntegrityError("nothing works")

    engine.step = broken  # type: ignore[method-assign]
    engine.fail = broken  # type: ignore[method-assign, assignment]
    asynchronous = AsyncEngine(engine)

    async def body() -> None:
        output = await asyncio.wait_for(asynchronous.generate([1], GREEDY), TIMEOUT_S)
        assert output.error == "the engine's step failed: IntegrityError: nothing works"
        assert asynchronous.failure == "the engine is broken: IntegrityError: nothing works"

    asyncio.run(body())
    asynchronous.close()


def test_draining_lets_requests_end_and_takes_no_more() -> None:
    async def body(engine: AsyncEngine) -> None:
        running = asyncio.create_task(engine.generate([1], GREEDY))
        while not engine.load.num_running:
            await asyncio.sleep(0.0005)
        draining = asyncio.create_task(engine.drain(10.0))
        await asyncio.sleep(0)
        with pytest.raises(EngineUnavailableError, match="shutting down"):
            await engine.generate([2], GREEDY)
        assert await draining
        assert tokens_of(await running) == solo([1])

    using(body, engine_of(slow_probabilities, k=0))


def test_draining_ends_what_outlasts_the_grace_period() -> None:
    async def body(engine: AsyncEngine) -> None:
        answers = await engine.submit([([1], LONG)])
        assert not await engine.drain(0.0)
        (output,) = await answers.result()
        assert output.error == "the server is shutting down"
        assert output.outputs[0].finish_reason == "error"

    using(body, engine_of(slow_probabilities, k=0))


def test_closing_ends_what_runs_and_may_be_done_twice() -> None:
    async def body(engine: AsyncEngine) -> None:
        answers = await engine.submit([([1], LONG)])
        await asyncio.to_thread(engine.close)
        (output,) = await answers.result()
        assert output.error == "the engine is closed"
        with pytest.raises(EngineUnavailableError, match="closed"):
            await engine.generate([1], GREEDY)

    using(body, engine_of(slow_probabilities, k=0))


def test_an_idle_engine_uses_no_processor_time() -> None:
    async def body(engine: AsyncEngine) -> None:
        await engine.generate([1], GREEDY)
        before = time.process_time()
        await asyncio.sleep(0.3)
        assert time.process_time() - before < 0.1

    using(body)


def test_the_observer_hears_of_every_request_and_may_fail() -> None:
    class Failing(Watcher):
        def gained(self, request: Request, piece: StreamPiece) -> None:
            super().gained(request, piece)
            raise RuntimeError("no disk left")

    watcher = Failing()

    async def body(engine: AsyncEngine) -> None:
        output = await engine.generate([1], SamplingParams(temperature=0.0, max_tokens=9))
        steps = output.metrics.speculative_decoding.num_steps
        name = output.request_id
        assert watcher.events == [("started", name), *[("gained", name)] * steps, ("ended", name)]

    using(body, observer=watcher)


ACTION = st.tuples(
    st.sampled_from(["read", "stop early", "cancel", "lose", "bad"]), st.integers(0, VOCAB - 1), st.integers(0, 4)
)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(actions=st.lists(ACTION, min_size=1, max_size=12), max_num_seqs=st.integers(1, 4), num_blocks=st.integers(7, 20))
def test_random_callers_leave_no_trace_and_get_solo_answers(
    actions: list[tuple[str, int, int]], max_num_seqs: int, num_blocks: int
) -> None:
    async def act(engine: AsyncEngine, what: str, token: int, count: int) -> None:
        await asyncio.sleep(0.001 * count)
        if what == "bad":
            with pytest.raises(InvalidRequestError):
                await engine.generate([VOCAB], GREEDY)
        elif what == "read":
            assert tokens_of(await engine.generate([token], GREEDY)) == solo([token])
        elif what == "cancel":
            task = asyncio.create_task(engine.generate([token], GREEDY))
            await asyncio.sleep(0.001 * count)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        elif what == "lose":
            await engine.submit([([token], GREEDY)] * (1 + count))
        else:
            seen: list[int] = []
            async for piece in engine.stream([token], GREEDY):
                seen += piece.token_ids
                if len(seen) > count:
                    break
            assert tuple(seen) == solo([token])[: len(seen)]

    async def body(engine: AsyncEngine) -> None:
        await asyncio.gather(*(act(engine, *action) for action in actions))
        gc.collect()
        await idle(engine)
        engine.engine.check_integrity()

    using(body, engine_of(max_num_seqs=max_num_seqs, num_blocks=num_blocks))
