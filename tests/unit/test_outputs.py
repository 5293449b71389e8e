"""What the engine says of speculation: fields, and one line for people."""

from __future__ import annotations

import json

import pytest

from outrider.outputs import SpeculationStatus

SUFFIX = SpeculationStatus("suffix", 15)
OFF = SpeculationStatus(num_speculative_tokens=0, inactive_reason="speculation is off")


@pytest.mark.parametrize(
    ("status", "active", "words"),
    [
        (SUFFIX, True, "suffix, up to 15 tokens per step"),
        (SpeculationStatus("ngram", 1), True, "ngram, up to 1 token per step"),
        (SpeculationStatus("own"), True, "own"),
        (OFF, False, "inactive: speculation is off"),
        (SpeculationStatus("suffix", 15, "drafter 'suffix': broke"), False, "inactive: drafter 'suffix': broke"),
    ],
)
def test_a_status_is_fields_and_a_line(status: SpeculationStatus, active: bool, words: str) -> None:
    assert status.active is active
    assert str(status) == f"{status}" == status.describe() == words
    assert json.loads(json.dumps(status.to_dict())) == {
        "active": active,
        "description": words,
        "method": status.method,
        "num_speculative_tokens": status.num_speculative_tokens,
        "inactive_reason": status.inactive_reason,
    }


@pytest.mark.parametrize(
    ("method", "count", "expected"),
    [
        (None, None, SUFFIX),
        (None, 3, SpeculationStatus("suffix", 3)),
        (None, 64, SUFFIX),
        ("prediction", None, SpeculationStatus("prediction", 15)),
        ("off", None, SpeculationStatus("suffix", 15, "turned off in this request")),
        (None, 0, SpeculationStatus("suffix", 15, "turned off in this request")),
    ],
)
def test_a_request_may_choose_lower_or_turn_off(
    method: str | None, count: int | None, expected: SpeculationStatus
) -> None:
    assert SUFFIX.in_request(method, count) == expected
    assert OFF.in_request(method, count) == OFF, "what is off stays off, for the engine's own reason"
