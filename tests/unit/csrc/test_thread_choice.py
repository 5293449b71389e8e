"""The number of threads that is chosen, from made-up times of passes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

pytest.importorskip("outrider._native")
from outrider import native

_native = native.library

QUIET = {1: 1.8, 2: 1.0}
BUSY = {1: 2.7, 2: 8.0}


def feed(
    choice: native.library.ThreadChoice, passes: int, seconds: Callable[[int], float], limit: int = 2, rows: int = 1
) -> list[int]:
    """The number chosen for each of ``passes``, which takes ``seconds(number)``."""
    chosen = []
    for _ in range(passes):
        threads = choice.choose(rows, limit)
        assert 1 <= threads <= limit
        choice.record(rows, threads, seconds(threads))
        chosen.append(threads)
    return chosen


def noisy(times: dict[int, float], seed: int) -> Callable[[int], float]:
    """Times that scatter by a tenth, and now and then a pass that takes three times as long."""
    draw = random.Random(seed)
    return lambda threads: times[threads] * draw.uniform(0.9, 1.1) * (3.0 if draw.random() < 0.02 else 1.0)


def test_all_threads_work_on_a_quiet_machine_and_trials_are_rare() -> None:
    choice = _native.ThreadChoice()
    assert choice.threads == 0
    chosen = feed(choice, 5000, QUIET.__getitem__)
    assert choice.threads == 2
    assert chosen.count(1) <= 14


@pytest.mark.parametrize("seed", range(5))
def test_noise_on_a_quiet_machine_changes_little(seed: int) -> None:
    chosen = feed(_native.ThreadChoice(), 3000, noisy(QUIET, seed))
    assert chosen.count(1) < 60


@pytest.mark.parametrize("seed", range(5))
def test_one_works_while_two_are_slow_and_both_again_afterwards(seed: int) -> None:
    choice = _native.ThreadChoice()
    feed(choice, 500, noisy(QUIET, seed))
    assert choice.threads == 2
    busy = feed(choice, 500, noisy(BUSY, seed))
    assert choice.threads == 1
    assert busy[100:].count(2) < 40
    after = feed(choice, 500, noisy(QUIET, seed))
    assert choice.threads == 2
    assert after[150:].count(1) < 20


def test_a_machine_that_is_busy_from_the_start_is_noticed() -> None:
    choice = _native.ThreadChoice()
    feed(choice, 30, BUSY.__getitem__)
    assert choice.threads == 1


def test_passes_of_different_sizes_are_compared_with_their_like() -> None:
    """Long passes with one number of threads do not make it look slow."""
    choice = _native.ThreadChoice()
    for turn in range(600):
        rows = 512 if turn % 7 == 3 else 1 + turn % 3
        times = {threads: seconds * rows for threads, seconds in QUIET.items()}
        feed(choice, 1, times.__getitem__, rows=rows)
    assert choice.threads == 2


def test_long_passes_are_not_tried_where_there_are_short_ones() -> None:
    choice = _native.ThreadChoice()
    chosen = []
    for _ in range(300):
        feed(choice, 1, QUIET.__getitem__)
        chosen += feed(choice, 1, lambda threads: 300 * QUIET[threads], rows=512)
    assert set(chosen) == {2}


@pytest.mark.parametrize("best", [16, 15, 8, 2, 1])
def test_the_best_of_many_is_found_step_by_step(best: int) -> None:
    choice = _native.ThreadChoice()

    def seconds(threads: int) -> float:
        return 1.0 + abs(threads - best) * (0.5 if threads > best else 1.0 / best)

    feed(choice, 3000, seconds, limit=16)
    assert seconds(choice.threads) <= seconds(best) / 0.9


def test_one_thread_is_all_there_is() -> None:
    choice = _native.ThreadChoice()
    assert set(feed(choice, 50, lambda threads: 1.0, limit=1)) == {1}


def test_another_limit_starts_anew() -> None:
    choice = _native.ThreadChoice()
    feed(choice, 100, BUSY.__getitem__)
    assert choice.threads == 1
    assert choice.choose(1, 4) == 4


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_time_that_is_none_is_ignored(seconds: float) -> None:
    choice = _native.ThreadChoice()
    feed(choice, 100, lambda threads: seconds)
    assert choice.threads == 2
