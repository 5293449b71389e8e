"""Pass costs on disk: taken again where they hold, measured anew where they do not, and never in the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.runner.model_runner import ModelRunner
from outrider.speculation import cost_cache
from outrider.speculation.cost_cache import costs_of
from outrider.speculation.costs import PassCosts, PassLoad
from tests.toy import ToyModel, random_table

TABLE = {1: 1.0, 4: 1.2, 16: 2.0}
KEY = {"model": "toy", "threads": 2}


class Machine:
    """Passes that take what a table says; counts how often everything was measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = PassCosts(TABLE, per_context=0.001)
        self.speed = 1.0
        self.num_measured = 0
        self.runner = ModelRunner(ToyModel(4, random_table(4, seed=0)), num_blocks=8, block_size=4)
        monkeypatch.setattr(cost_cache, "measure_passes", self._measure)
        monkeypatch.setattr(cost_cache, "pass_seconds", self._pass)

    def _measure(self, runner: ModelRunner, *, seconds: float) -> PassCosts:
        self.num_measured += 1
        return PassCosts({rows: self.speed * each for rows, each in self.table.table().items()}, per_context=0.001)

    def _pass(self, runner: ModelRunner, rows: int) -> float:
        return self.speed * self.table.seconds(PassLoad(rows))

    def start(self, folder: Path | None, **key: object) -> PassCosts:
        return costs_of(self.runner, folder, {**KEY, **key}, seconds=1.0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_second_start_takes_the_table_and_scales_it_to_the_machines_speed(machine: Machine, tmp_path: Path) -> None:
    first = machine.start(tmp_path)
    machine.speed = 1.7
    second = machine.start(tmp_path)
    assert machine.num_measured == 1
    for load in (PassLoad(1), PassLoad(8), PassLoad(1, 1000)):
        assert second.seconds(load) == pytest.approx(1.7 * first.seconds(load))


def test_another_model_or_number_of_threads_is_measured_by_itself(machine: Machine, tmp_path: Path) -> None:
    machine.start(tmp_path)
    machine.start(tmp_path, threads=1)
    machine.start(tmp_path, model="other")
    machine.start(tmp_path)
    assert machine.num_measured == 3


def test_a_table_whose_shape_no_longer_holds_is_measured_again_and_replaced(machine: Machine, tmp_path: Path) -> None:
    machine.start(tmp_path)
    machine.table = PassCosts({1: 1.0, 4: 2.0, 16: 8.0})
    for _ in range(3):
        costs = machine.start(tmp_path)
    assert machine.num_measured == 2
    assert costs.seconds(PassLoad(4)) == pytest.approx(2.0)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"seconds_by_rows": {"1": 0}}', '{"seconds_by_rows": 3}', "\0\1"])
def test_a_damaged_file_costs_only_the_measuring(content: str, machine: Machine, tmp_path: Path) -> None:
    machine.start(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    machine.start(tmp_path)
    assert machine.num_measured == 2
    assert json.loads(file.read_text())["key"] == KEY, "and is replaced"


def test_a_folder_that_cannot_be_written_costs_only_the_measuring(machine: Machine, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    for folder in (blocked / "costs", None):
        assert machine.start(folder).seconds(PassLoad(1)) == pytest.approx(1.0)
    assert machine.num_measured == 2
    assert machine.runner.kv.num_free_blocks == machine.runner.kv.num_blocks


def test_the_check_leaves_no_block_behind(tmp_path: Path) -> None:
    runner = ModelRunner(ToyModel(4, random_table(4, seed=0)), num_blocks=8, block_size=4)
    for _ in range(2):
        costs_of(runner, tmp_path, KEY, seconds=0.01)
        assert runner.kv.num_free_blocks == runner.kv.num_blocks
