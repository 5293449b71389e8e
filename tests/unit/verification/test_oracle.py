"""The oracle itself, on cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.sampling_params import SamplingParams
from outrider.verification import oracle
from tests.unit.verification import oracle_step

P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])


def test_closed_forms_by_hand() -> None:
    assert oracle_step.acceptance_probability(P, Q) == pytest.approx(0.6)
    assert oracle_step.residual_probs(P, Q) == pytest.approx([0.75, 0.25, 0.0])
    assert oracle_step.residual_probs(P, P) == pytest.approx(P)
    assert oracle_step.expected_tokens(0.5, 3) == pytest.approx(1.875)
    assert oracle_step.expected_tokens(1.0, 3) == 4.0
    assert oracle_step.expected_tokens(0.0, 3) == 1.0


def test_total_variation_counts_missing_mass() -> None:
    assert oracle.total_variation({"a": 0.5, "b": 0.5}, {"a": 0.25, "c": 0.75}) == pytest.approx(0.75)
    assert oracle.total_variation({"a": 0.5}, {"a": 1.0}) == pytest.approx(0.25)


def test_plain_distribution_multiplies_along_the_string_and_stops_at_end_tokens() -> None:
    def table(context: tuple[int, ...]) -> oracle.Row:
        return np.array([0.25, 0.75]) if not context else np.array([1.0, 0.0])

    assert oracle.plain_distribution(table, (), 2) == {(0, 0): 0.25, (1, 0): 0.75}
    assert oracle.plain_distribution(table, (), 2, frozenset({1})) == {(0, 0): 0.25, (1,): 0.75}
    assert oracle.plain_distribution(table, (), 0) == {(): 1.0}


def test_step_distribution_by_hand() -> None:
    found = oracle_step.step_distribution(lambda context: P, lambda context: Q, (), 1)
    assert sum(found.values()) == pytest.approx(1.0)
    assert found[0, (0,)] == pytest.approx(0.3)
    assert (0, (2,)) not in found
    assert found[1, (2, 1)] == pytest.approx(0.2 * 0.3)


def test_processed_distribution_by_hand() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.3, 0.2]))
    assert oracle.processed_probs(logits, SamplingParams()) == pytest.approx([0.1, 0.4, 0.3, 0.2])
    assert oracle.processed_probs(logits, SamplingParams(top_k=2)) == pytest.approx([0, 4 / 7, 3 / 7, 0])
    assert oracle.processed_probs(logits, SamplingParams(top_p=0.65)) == pytest.approx([0, 4 / 7, 3 / 7, 0])
    assert oracle.processed_probs(logits, SamplingParams(temperature=0.0)) == pytest.approx([0, 1, 0, 0])
    assert oracle.processed_probs(logits, SamplingParams(temperature=0.5)) == pytest.approx(
        np.array([0.01, 0.16, 0.09, 0.04]) / 0.3
    )
