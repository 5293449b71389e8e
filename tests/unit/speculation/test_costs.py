"""Cost tables: between and beyond what was measured, and what they learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.speculation.costs import DraftCosts, PassCosts, PassLoad

TABLE = {1: 10.0, 4: 11.0, 8: 15.0}


def test_between_the_measured_rows_and_beyond_the_last() -> None:
    costs = PassCosts(TABLE)
    assert costs.with_more_rows(PassLoad(1), 11) == pytest.approx(
        [10.0, 10 + 1 / 3, 10 + 2 / 3, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0]
    )
    assert PassCosts({2: 3.0}).seconds(PassLoad(6)) == pytest.approx(9.0)


def test_beyond_a_stair_it_rises_as_on_the_whole() -> None:
    costs = PassCosts({1: 10.0, 4: 13.0, 8: 17.0, 9: 17.0})
    assert costs.seconds(PassLoad(17)) == pytest.approx(24.0)


def test_context_counts_once_for_a_request_and_once_for_each_row() -> None:
    costs = PassCosts({1: 10.0, 2: 10.0}, per_context=0.01, per_attended=0.001)
    assert costs.seconds(PassLoad(2, 100, 200)) == pytest.approx(10.0 + 1.0 + 0.2)
    assert costs.with_more_rows(PassLoad(2, 100, 200), 2) == pytest.approx([11.2, 11.3, 11.4])


@given(st.dictionaries(st.integers(1, 40), st.floats(1e-4, 1.0), min_size=1), st.integers(1, 60))
def test_more_rows_never_cost_less(table: dict[int, float], rows: int) -> None:
    after = PassCosts(table).with_more_rows(PassLoad(rows), 30)
    assert (np.diff(after) >= -1e-12).all(), after


def test_a_slower_machine_changes_the_level_and_hardly_the_shape() -> None:
    costs = PassCosts(TABLE)
    for _ in range(60):
        costs.observe(PassLoad(1), 20.0)
    assert costs.seconds(PassLoad(1)) == pytest.approx(20.0, rel=0.02)
    assert costs.seconds(PassLoad(8)) / costs.seconds(PassLoad(1)) == pytest.approx(1.5, rel=0.12)


def test_a_shape_measured_wrongly_is_put_right_by_passes_of_both_kinds() -> None:
    costs = PassCosts({1: 10.0, 4: 40.0})
    for _ in range(600):
        costs.observe(PassLoad(1), 10.0)
        costs.observe(PassLoad(4), 12.0)
    assert costs.seconds(PassLoad(4)) / costs.seconds(PassLoad(1)) == pytest.approx(1.2, rel=0.1)


def test_one_interrupted_pass_is_not_believed() -> None:
    costs = PassCosts(TABLE)
    costs.observe(PassLoad(1), 1000.0)
    assert costs.seconds(PassLoad(1)) < 12.0


@pytest.mark.parametrize("table", [{}, {0: 1.0}, {1: 0.0}, {1: -1.0}])
def test_a_table_without_times_is_refused(table: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="must give a time above 0"):
        PassCosts(table)


def test_a_call_of_a_drafter_is_a_pass_over_what_it_lacks_and_one_for_each_further_level() -> None:
    costs = DraftCosts(PassCosts({1: 1.0, 2: 1.5, 101: 51.0}))
    assert costs.seconds(1, 3, 0) == pytest.approx(3.0)
    assert costs.seconds(2, 3, 0) == pytest.approx(4.5)
    assert costs.seconds(1, 3, 100) == pytest.approx(53.0)
    assert costs.seconds(0, 3, 0) == costs.seconds(1, 0, 5) == 0.0
    for _ in range(40):
        costs.observe(costs.seconds(1, 3, 0), 6.0)
    assert costs.seconds(1, 3, 0) == pytest.approx(6.0, rel=0.01)
