"""What passes cost, by a clock that the model itself moves: the table is its distribution, and the cache is left
empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outrider.models.base import ModelOutput
from outrider.models.batch import ForwardBatch
from outrider.runner.model_runner import ModelRunner
from outrider.speculation.costs import PassLoad
from outrider.speculation.measure import ROWS, measure_passes
from tests.toy import Tokens, ToyModel, random_table


class TimedModel(ToyModel):
    """A pass takes ``base`` seconds, ``per_row`` for each, and a little for each token attended to."""

    def __init__(self, base: float, per_row: float, per_attended: float = 0.0) -> None:
        super().__init__(4, random_table(4, seed=0))
        self.now = 0.0
        self._distribution_of_time = base, per_row, per_attended
        self.hiccup = 0

    def __call__(self) -> float:
        return self.now

    def forward(self, batch: ForwardBatch, cache: Tokens, capture: Sequence[int] = ()) -> ModelOutput:
        base, per_row, per_attended = self._distribution_of_time
        rows = len(batch.token_ids)
        cache[:] = 0  # the context before the timed rows was never written
        self.hiccup += 1
        slow = 5.0 if self.hiccup % 4 == 0 else 1.0
        self.now += slow * (base + per_row * rows + per_attended * rows * max(batch.seq_lens))
        return super().forward(batch, cache, capture)


def runner_of(model: ToyModel, **sizes: Any) -> ModelRunner:
    return ModelRunner(model, **{"num_blocks": 100, "block_size": 16, **sizes})


def test_the_table_is_the_distribution_of_time_whatever_hiccups() -> None:
    model = TimedModel(0.01, 0.001)
    runner = runner_of(model)
    costs = measure_passes(runner, seconds=3.0, clock=model)
    for rows in (*ROWS, 10, 100):
        assert costs.seconds(PassLoad(rows)) == pytest.approx(0.01 + 0.001 * rows, rel=1e-6)
    assert runner.kv.num_free_blocks == runner.kv.num_blocks
    runner.kv.check_integrity(live=())


def test_the_context_is_charged_to_each_row() -> None:
    model = TimedModel(0.01, 0.0, per_attended=1e-6)
    costs = measure_passes(runner_of(model), seconds=3.0, clock=model)
    assert costs.seconds(PassLoad(4, 1000, 4000)) - costs.seconds(PassLoad(4)) == pytest.approx(4e-3, rel=0.05)


def test_a_slow_model_is_not_timed_at_many_rows() -> None:
    model = TimedModel(0.1, 0.1)
    costs = measure_passes(runner_of(model), seconds=4.0, clock=model)
    assert max(costs.table()) == 16
    assert model.now < 40.0
    assert costs.seconds(PassLoad(32)) == pytest.approx(3.3, rel=0.01), "beyond, as the last ones rise"


def test_a_cache_smaller_than_a_row_count_is_enough() -> None:
    model = TimedModel(0.01, 0.001)
    runner = runner_of(model, num_blocks=3, block_size=2)
    assert max(measure_passes(runner, seconds=1.0, clock=model).table()) == 6
    assert runner.kv.num_free_blocks == 3
