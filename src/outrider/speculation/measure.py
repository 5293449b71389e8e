"""Times a model's forward passes by rows and context: the table from which speculation by cost starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from outrider.runner.model_runner import Chunk, ModelRunner
from outrider.speculation.costs import PassCosts

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
"""The numbers of rows that are timed. Kernels work in tiles of rows, so the small numbers each matter."""
_ALWAYS = 16
"""Up to this many rows are timed whatever it takes. Beyond, costs are extrapolated."""
_CONTEXT = 1024
_NAME = "measuring the cost of a pass"


def pass_seconds(runner: ModelRunner, rows: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one pass over ``rows`` tokens without context. The cache is as before afterwards."""
    try:
        return _timed(runner, rows, 0, clock)
    finally:
        runner.kv.free(_NAME)


def measure_passes(
    runner: ModelRunner,
    *,
    seconds: float,
    rows: Sequence[int] = ROWS,
    clock: Callable[[], float] = time.perf_counter,
) -> PassCosts:
    """Time passes of the runner's model over ``rows``, all sizes in turn, for about ``seconds``.

    Each size runs at least twice and its shortest time counts, since other processes only ever lengthen it. Sizes that
    do not fit the cache are left out. From 16 rows on, so are the sizes beyond the first that takes an eighth of the
    time. The cache must hold no request, and is as before afterwards.
    """
    room = min(runner.kv.capacity, runner.model.max_model_len)
    sizes = [size for size in rows if size <= room] or [1]
    times: dict[int, list[float]] = {}
    begin = clock()
    try:
        _timed(runner, 1, 0, clock)  # the first pass touches weights and caches for the first time
        for round_number in range(20):
            for size in list(sizes):
                taken = _timed(runner, size, 0, clock)
                times.setdefault(size, []).append(taken)
                if round_number == 0 and size >= _ALWAYS and taken > seconds / 8.0:
                    sizes = [each for each in sizes if each <= size]
                    break
            if round_number and clock() - begin > seconds:
                break
        shortest = {size: min(each) for size, each in times.items()}
        context = min(_CONTEXT, room - 4)
        if context < 256 or clock() - begin > 2.0 * seconds:
            return PassCosts(shortest)
        few, more = sizes[0], min(4, max(sizes))
        extra = {
            size: min(_timed(runner, size, context, clock) for _ in range(3)) - shortest[size] for size in {few, more}
        }
    finally:
        runner.kv.free(_NAME)
    per_attended = 0.0 if more == few else max((extra[more] - extra[few]) / (context * (more - few)), 0.0)
    per_context = max(extra[few] / context - few * per_attended, 0.0)
    return PassCosts(shortest, per_context=per_context, per_attended=per_attended)


def _timed(runner: ModelRunner, rows: int, context: int, clock: Callable[[], float]) -> float:
    """Seconds of a pass over ``rows`` tokens of one request, all scored, after ``context`` others."""
    runner.kv.allocate(_NAME, context + rows)
    chunk = Chunk(_NAME, [0] * rows, context, num_logits=rows)
    begin = clock()
    runner.forward([chunk])
    return clock() - begin
