"""Logits as they cross the model boundary: both kinds answer alike, and parts are parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from outrider.models.logits import ArrayLogits, Logits, Rows, find_argmax
from outrider.torch_backend.logits import TorchLogits

KINDS: dict[str, Callable[[Rows], Logits]] = {
    "array": ArrayLogits,
    "array, float64": lambda values: ArrayLogits(values.astype(np.float64)),
    "torch": lambda values: TorchLogits.of(torch.from_numpy(values.copy())),
}
VALUES = np.array([[0, 3, 3, 1], [5, 5, 5, 5], [-1, -2, -1, -np.inf], [2, 9, 0, 9]], np.float32)
IDS = [1, 0, 0, 1]


@pytest.fixture(params=KINDS)
def logits(request: pytest.FixtureRequest) -> Logits:
    return KINDS[request.param](VALUES)


def test_the_most_probable_token_is_the_lowest_of_equals(logits: Logits) -> None:
    assert len(logits) == 4
    assert logits.argmax() == IDS
    assert logits.argmax(slice(1, 3)) == IDS[1:3]
    assert logits.argmax(slice(-1, None)) == IDS[-1:]
    assert logits.argmax(slice(2, 2)) == []


def test_rows_are_copied_as_they_are(logits: Logits) -> None:
    for index, values in enumerate(VALUES):
        assert np.array_equal(logits.row(index), values)
    assert np.array_equal(logits.row(-1), VALUES[-1])
    assert np.array_equal(logits.rows(slice(None)), VALUES)
    assert np.array_equal(logits.rows(slice(1, 3)), VALUES[1:3])
    assert logits.rows(slice(4, 4)).shape == (0, 4)


def test_a_part_counts_from_its_own_first_row(logits: Logits) -> None:
    part = logits[1:][1:3]
    assert len(part) == 2
    assert part.argmax() == IDS[2:]
    assert part.argmax(slice(1, 2)) == IDS[3:]
    assert np.array_equal(part.row(0), VALUES[2])
    assert np.array_equal(part.rows(slice(0, 2)), VALUES[2:])
    assert len(logits[-1:]) == 1
    assert len(logits[4:]) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_have_no_most_probable_token(kind: str, bad: float) -> None:
    values = VALUES.copy()
    values[2, 3] = bad
    logits = KINDS[kind](values)
    assert logits.argmax() == []
    assert logits.argmax(slice(0, 2)) == IDS[:2], "other rows have"
    values[2] = -np.inf
    assert KINDS[kind](values).argmax(slice(2, 3)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_all_requests_at_once(kind: str) -> None:
    values = VALUES.copy()
    values[3, 0] = np.nan
    whole = KINDS[kind](values)
    parts = [whole[:2], whole[2:3], whole[3:], whole[:0]]
    find_argmax(parts)
    assert [part.known_argmax for part in parts] == [part.argmax() for part in parts] == [IDS[:2], IDS[2:3], [], []]
    find_argmax([])


def test_kinds_may_be_mixed() -> None:
    parts = [make(VALUES)[place : place + 1] for place, make in enumerate(KINDS.values())]
    find_argmax(parts)
    assert [part.argmax() for part in parts] == [[token_id] for token_id in IDS[: len(parts)]]
