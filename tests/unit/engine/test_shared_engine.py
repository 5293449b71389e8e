"""SharedEngine: whatever its threads do, each gets the answers it would get alone, and all blocks come back."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from numpy.typing import NDArray

from outrider.engine.engine import Engine
from outrider.engine.shared_engine import Job, SharedEngine
from outrider.errors import EngineUnavailableError, IntegrityError, InvalidRequestError, RequestFailedError
from outrider.outputs import RequestOutput, StreamPiece
from outrider.sampling_params import SamplingParams
from tests.toy import random_table
from tests.unit.engine.helpers import GREEDY, oracle, run, toy_engine

VOCAB = 11
DISTRIBUTION = random_table(VOCAB, seed=1, sharpness=3.0)
PROMPTS: list[list[int]] = [[1], [2, 3], [4, 5, 6], [7] * 9, [8, 1] * 4, [0, 2]]
SEEDED = SamplingParams(seed=5, max_tokens=24)
TIMEOUT_S = 60.0


class Watched:
    """A distribution that does ``before(context)`` first."""

    def __init__(self) -> None:
        self.before: Callable[[tuple[int, ...]], None] = lambda context: None

    def __call__(self, context: tuple[int, ...]) -> NDArray[Any]:
        self.before(context)
        return DISTRIBUTION(context)


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def shared(watched: Watched) -> Iterator[SharedEngine]:
    """An engine whose drafts are half right, and which must be empty and whole in the end."""
    drafter = oracle(DISTRIBUTION, right=lambda request: request.num_tokens % 3, vocab_size=VOCAB)
    found = SharedEngine(toy_engine(watched, drafter, vocab_size=VOCAB))
    yield found
    assert_empty(found)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C raises, as it does for a program in the foreground."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "the handler is put back"
    signal.signal(signal.SIGINT, usual)


def assert_empty(shared: SharedEngine) -> None:
    engine = shared.engine
    assert not engine.has_requests
    assert not engine._requests
    assert not shared._answers
    assert shared._turn_of is None
    assert engine.runner.kv.num_free_blocks == engine.runner.kv.num_blocks
    engine.check_integrity()


def alone(prompt: Sequence[int], params: SamplingParams = GREEDY) -> tuple[int, ...]:
    return run(toy_engine(DISTRIBUTION, None, vocab_size=VOCAB), [prompt], params)[0].outputs[0].token_ids


def generate(shared: SharedEngine, prompt: Sequence[int], params: SamplingParams = GREEDY) -> tuple[int, ...]:
    (output,) = shared.generate([Job(prompt, params)])
    assert output.error is None, output.error
    return output.outputs[0].token_ids


def read(stream: Iterator[StreamPiece]) -> tuple[tuple[int, ...], RequestOutput | None]:
    pieces = list(stream)
    assert all(piece.output is None for piece in pieces[:-1])
    return tuple(token for piece in pieces for token in piece.token_ids), pieces[-1].output


def together(*jobs: Callable[[], Any]) -> list[Any]:
    """What each job returns or raises in a thread of its own; none may hang."""
    results: list[Any] = [None] * len(jobs)

    def work(place: int) -> None:
        try:
            results[place] = jobs[place]()
        except BaseException as error:
            results[place] = error

    threads = [threading.Thread(target=work, args=[place], daemon=True) for place in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return results


def others_are_adding(shared: SharedEngine, count: int) -> Callable[[tuple[int, ...]], None]:
    """Holds the first forward pass up until so many other threads have come with requests."""
    waiting = [True]

    def wait(context: tuple[int, ...]) -> None:
        if waiting[0]:
            waiting[0] = False
            for _ in range(int(TIMEOUT_S * 1000)):
                if shared._num_adding == count:
                    return
                threading.Event().wait(0.001)
            raise AssertionError(f"{shared._num_adding} threads came, not {count}")

    return wait


def count_sizes(engine: Engine) -> list[int]:
    """How many requests gained something in each step, as steps are made."""
    sizes: list[int] = []
    step = engine.step

    def counted() -> Any:
        outcomes = step()
        sizes.append(len(outcomes))
        return outcomes

    engine.step = counted  # type: ignore[method-assign]
    return sizes


@pytest.mark.parametrize("params", [GREEDY, SEEDED])
def test_threads_share_batches_and_get_what_they_get_alone(
    shared: SharedEngine, watched: Watched, params: SamplingParams
) -> None:
    watched.before = others_are_adding(shared, len(PROMPTS) - 1)
    sizes = count_sizes(shared.engine)
    answers = together(*(lambda prompt=prompt: generate(shared, prompt, params) for prompt in PROMPTS))
    assert answers == [alone(prompt, params) for prompt in PROMPTS]
    assert sizes[1] == len(PROMPTS), "after the first step all of them are in one batch"


def test_many_calls_from_many_threads(shared: SharedEngine) -> None:
    def work(place: int) -> None:
        for turn in range(12):
            prompt, params = PROMPTS[(place + turn) % len(PROMPTS)], (GREEDY, SEEDED)[turn % 2]
            if turn % 3:
                assert generate(shared, prompt, params) == alone(prompt, params)
            else:
                tokens, output = read(shared.stream(Job(prompt, params)))
                assert output is not None
                assert tokens == output.outputs[0].token_ids == alone(prompt, params)

    assert together(*(lambda place=place: work(place) for place in range(6))) == [None] * 6


def test_a_stream_ends_with_the_output(shared: SharedEngine) -> None:
    pieces = list(shared.stream(Job([1, 2], GREEDY, "a text")))
    assert len(pieces) > 1
    assert [piece.output for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    (expected,) = shared.generate([Job([1, 2], GREEDY, "a text")])
    output = pieces[-1].output
    assert output is not None
    assert output.prompt == "a text"
    assert output.outputs == expected.outputs
    assert output.finished
    assert output.metrics.speculative_decoding.num_spec_steps > 0
    assert "".join(piece.text for piece in pieces) == output.outputs[0].text
    assert pieces[-1].finish_reason == output.outputs[0].finish_reason == "length"


def test_pieces_wait_while_other_threads_step(shared: SharedEngine) -> None:
    streams = [shared.stream(Job(prompt, GREEDY)) for prompt in PROMPTS[:2]]
    first = [next(stream).token_ids for stream in streams]
    assert together(lambda: generate(shared, PROMPTS[2]), lambda: generate(shared, PROMPTS[3], SEEDED)) == [
        alone(PROMPTS[2]),
        alone(PROMPTS[3], SEEDED),
    ]
    assert not shared.engine.has_requests, "the steps of the other threads have ended the streams' requests too"
    rest = together(*(lambda stream=stream: read(stream) for stream in streams))
    for place, (tokens, output) in enumerate(rest):
        assert first[place] + tokens == output.outputs[0].token_ids == alone(PROMPTS[place])


def test_a_closed_stream_frees_its_blocks_at_once(shared: SharedEngine) -> None:
    stream = shared.stream(Job([1, 2, 3], GREEDY))
    next(stream)
    assert shared.engine.has_requests
    stream.close()
    assert_empty(shared)


def test_a_stream_that_is_never_read_is_no_request(shared: SharedEngine) -> None:
    shared.stream(Job([1, 2, 3], GREEDY))
    assert not shared.engine.has_requests


def test_a_stream_that_is_closed_while_another_thread_steps_ends_after_that_step(
    shared: SharedEngine, watched: Watched
) -> None:
    stream = shared.stream(Job([1, 2, 3], GREEDY))
    next(stream)
    inside, closed = threading.Event(), threading.Event()

    def hold(context: tuple[int, ...]) -> None:
        inside.set()
        assert closed.wait(TIMEOUT_S)

    watched.before = hold

    def close() -> None:
        assert inside.wait(TIMEOUT_S)
        stream.close()  # does not wait for the step
        closed.set()

    answer, _ = together(lambda: generate(shared, PROMPTS[3]), close)
    assert answer == alone(PROMPTS[3])


def test_the_garbage_collector_may_close_a_stream_within_a_step(shared: SharedEngine, watched: Watched) -> None:
    cycle: list[Any] = [shared.stream(Job([1, 2, 3], GREEDY))]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    unreached: list[int] = []
    watched.before = once_at(12, lambda: unreached.append(gc.collect()))
    assert together(lambda: generate(shared, PROMPTS[3])) == [alone(PROMPTS[3])]
    assert unreached[0] > 0


def test_what_does_not_fit_is_refused_and_nothing_is_kept(shared: SharedEngine) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        shared.generate([Job([1], GREEDY), Job([], GREEDY)])
    assert_empty(shared)


def test_a_request_that_fails_in_one_thread_leaves_the_others(shared: SharedEngine, watched: Watched) -> None:
    def broken(token_ids: Any, row: Any) -> Any:
        raise RuntimeError("out of ideas")

    watched.before = others_are_adding(shared, 2)
    bad = GREEDY.model_copy(update={"logits_processors": (broken,)})
    failed, streamed, fine = together(
        lambda: shared.generate([Job(PROMPTS[0], bad)]),
        lambda: read(shared.stream(Job(PROMPTS[1], bad))),
        lambda: generate(shared, PROMPTS[2]),
    )
    assert "out of ideas" in failed[0].error
    assert isinstance(streamed, RequestFailedError)
    assert fine == alone(PROMPTS[2])


def test_a_stream_of_a_request_that_fails_gives_the_output_and_raises(shared: SharedEngine) -> None:
    def broken(token_ids: tuple[int, ...], row: Any) -> Any:
        if len(token_ids) > 4:
            raise RuntimeError("out of ideas")
        return row

    pieces = []
    with pytest.raises(RequestFailedError, match="out of ideas"):
        for piece in shared.stream(Job([1, 2], GREEDY.model_copy(update={"logits_processors": (broken,)}))):
            pieces.append(piece)
    assert pieces[-1].finish_reason == "error"
    assert pieces[-1].output is not None
    assert "out of ideas" in str(pieces[-1].output.error)


def fail_second_step(engine: Engine, error: BaseException) -> None:
    """After the second step has done its work, its outcomes are lost."""
    step, steps = engine.step, [0]

    def failing() -> Any:
        outcomes = step()
        steps[0] += 1
        if steps[0] == 2:
            raise error
        return outcomes

    engine.step = failing  # type: ignore[method-assign]


def test_a_step_that_fails_ends_all_requests_with_an_error_and_no_thread_hangs(
    shared: SharedEngine, watched: Watched
) -> None:
    watched.before = others_are_adding(shared, 2)
    fail_second_step(shared.engine, RuntimeError("no more steps"))
    outputs = together(*(lambda prompt=prompt: shared.generate([Job(prompt, GREEDY)]) for prompt in PROMPTS[:3]))
    for (output,) in outputs:
        assert output.error == "the engine's step failed: RuntimeError: no more steps"
        assert output.outputs[0].finish_reason == "error"
    assert generate(shared, PROMPTS[0]) == alone(PROMPTS[0]), "the engine goes on"


def test_pieces_of_a_lost_step_come_with_the_failure(shared: SharedEngine) -> None:
    fail_second_step(shared.engine, RuntimeError("no more steps"))
    pieces = []
    with pytest.raises(RequestFailedError, match="no more steps"):
        for piece in shared.stream(Job([1, 2], GREEDY)):
            pieces.append(piece)
    output = pieces[-1].output
    assert output is not None
    assert tuple(token for piece in pieces for token in piece.token_ids) == output.outputs[0].token_ids


def test_an_engine_whose_blocks_do_not_add_up_refuses_all_that_follows(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise IntegrityError("a block is lost")

    shared = SharedEngine(toy_engine(watched, None, vocab_size=VOCAB))
    watched.before = others_are_adding(shared, 1)
    fail_second_step(shared.engine, RuntimeError("no more steps"))
    monkeypatch.setattr(shared.engine, "fail", lambda request, problem: lost())
    results = together(*(lambda prompt=prompt: shared.generate([Job(prompt, GREEDY)]) for prompt in PROMPTS[:2]))
    assert [type(result) for result in results] == [EngineUnavailableError] * 2
    with pytest.raises(EngineUnavailableError, match="broken: IntegrityError: a block is lost; load the model again"):
        shared.generate([Job([1], GREEDY)])


def test_a_request_aborted_at_the_engine_itself_ends_its_stream(shared: SharedEngine) -> None:
    stream = shared.stream(Job([1, 2], GREEDY))
    first = next(stream)
    (request_id,) = shared.engine._requests
    shared.engine.abort(request_id)
    (last,) = stream
    assert last.finish_reason == "abort"
    assert last.output is not None
    assert last.output.outputs[0].token_ids == first.token_ids


def test_what_runs_inside_a_step_can_not_call_its_own_engine(shared: SharedEngine) -> None:
    def calling(token_ids: Any, row: Any) -> Any:
        shared.generate([Job([1], GREEDY)])
        return row

    params = GREEDY.model_copy(update={"logits_processors": (calling,)})
    ((output,),) = together(lambda: shared.generate([Job([1, 2], params)]))
    assert "can not call the LLM that it works for" in str(output.error)


def once_at(length: int, action: Callable[[], None]) -> Callable[[tuple[int, ...]], None]:
    """``action``, the first time that a context is that long."""
    done: list[bool] = []

    def act(context: tuple[int, ...]) -> None:
        if len(context) >= length and not done:
            done.append(True)
            action()

    return act


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_within_a_step_ends_the_call_after_it_and_leaves_the_engine_usable(
    shared: SharedEngine, watched: Watched
) -> None:
    steps: list[str] = []
    step = shared.engine.step

    def recorded() -> Any:
        steps.append("begun")
        outcomes = step()
        steps.append("done")
        return outcomes

    shared.engine.step = recorded  # type: ignore[method-assign]
    watched.before = once_at(6, ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        shared.generate([Job(prompt, GREEDY) for prompt in PROMPTS[:3]])
    assert steps[-1] == "done", "no step ended half-way"
    assert_empty(shared)
    assert generate(shared, PROMPTS[0]) == alone(PROMPTS[0])


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_while_requests_are_added_keeps_none_of_them(shared: SharedEngine) -> None:
    add = shared.engine.add_request

    def interrupted(*arguments: Any, **settings: Any) -> Any:
        request = add(*arguments, **settings)
        ctrl_c()
        return request

    shared.engine.add_request = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        shared.generate([Job([1], GREEDY)])
    assert_empty(shared)


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_in_the_main_thread_leaves_streams_and_other_threads(shared: SharedEngine, watched: Watched) -> None:
    stream = shared.stream(Job(PROMPTS[1], GREEDY))
    first = next(stream).token_ids
    results: list[Any] = []
    other = threading.Thread(target=lambda: results.append(generate(shared, PROMPTS[2])), daemon=True)
    main = threading.main_thread()

    def begin_and_interrupt() -> None:
        other.start()
        others_are_adding(shared, 1)(())
        ctrl_c()

    watched.before = once_at(5, begin_and_interrupt)
    assert threading.current_thread() is main
    with pytest.raises(KeyboardInterrupt):
        shared.generate([Job(PROMPTS[0], GREEDY)])
    other.join(TIMEOUT_S)
    assert results == [alone(PROMPTS[2])]
    tokens, output = read(stream)
    assert output is not None
    assert first + tokens == output.outputs[0].token_ids == alone(PROMPTS[1])


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_while_waiting_for_another_threads_step_comes_at_once(shared: SharedEngine, watched: Watched) -> None:
    inside, interrupted = threading.Event(), threading.Event()

    def hold(context: tuple[int, ...]) -> None:
        inside.set()
        assert interrupted.wait(TIMEOUT_S)

    watched.before = hold
    results: list[Any] = []
    other = threading.Thread(target=lambda: results.append(generate(shared, PROMPTS[2])), daemon=True)
    other.start()
    assert inside.wait(TIMEOUT_S)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        others_are_adding(shared, 1)(())
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        shared.generate([Job(PROMPTS[0], GREEDY)])
    assert not interrupted.is_set()
    interrupted.set()
    other.join(TIMEOUT_S)
    assert results == [alone(PROMPTS[2])]


@pytest.mark.usefixtures("interrupts")
def test_a_second_ctrl_c_ends_the_step_and_the_engine_recovers(shared: SharedEngine, watched: Watched) -> None:
    def twice() -> None:
        ctrl_c()
        ctrl_c()
        went_on.append(True)

    went_on: list[bool] = []
    watched.before = once_at(6, twice)
    with pytest.raises(KeyboardInterrupt):
        shared.generate([Job(prompt, GREEDY) for prompt in PROMPTS[:3]])
    assert not went_on, "the second one comes through at once"
    assert_empty(shared)
    assert generate(shared, PROMPTS[0]) == alone(PROMPTS[0])


def test_what_ends_a_thread_within_a_step_fails_the_others_requests_and_hangs_none(
    shared: SharedEngine, watched: Watched
) -> None:
    def leave() -> None:
        raise SystemExit

    watched.before = others_are_adding(shared, 2)
    step, first = shared.engine.step, [True]

    def leaving() -> Any:
        if not first[0]:
            watched.before = once_at(0, leave)
        first[0] = False
        return step()

    shared.engine.step = leaving  # type: ignore[method-assign]
    results = together(*(lambda prompt=prompt: shared.generate([Job(prompt, GREEDY)]) for prompt in PROMPTS[:3]))
    assert sum(isinstance(result, SystemExit) for result in results) == 1
    others = [result[0] for result in results if not isinstance(result, SystemExit)]
    assert [output.error for output in others] == ["the engine's step failed: SystemExit"] * 2
    shared.engine.step = step  # type: ignore[method-assign]
    watched.before = lambda context: None
    assert generate(shared, PROMPTS[0]) == alone(PROMPTS[0])
