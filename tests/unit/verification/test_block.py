"""Block verification: its acceptance in closed form, never behind standard, and its guards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outrider.audit.cases import PROMPT, Build, Case, all_cases
from outrider.audit.exact import MAX_TV
from outrider.audit.mutations import faulty_block
from outrider.audit.properties import FixedNoise
from outrider.sampling.noise import Purpose, Weights
from outrider.sampling.rng import KeyedNoise
from outrider.verification.base import Proposal, VerifyResult
from outrider.verification.block import excess, verify_block
from outrider.verification.standard import verify_standard

CASES = [case for case in all_cases() if case.verifier == "block" and case.num_drafts and not case.repeat]
HALF = np.array([0.5, 0.5])


def expected_accepted(case: Case) -> float:
    """The sum over i of the expected p_i, drafts following the draft's distribution: by formula, products instead of
    logs."""
    target, draft = case.models()
    language = case.language if case.drafts_within_language else None
    drafting = replace(case, target_params=case.draft_params, language=language)

    def beyond(drafts: tuple[int, ...], reach: float) -> float:
        if len(drafts) == case.num_drafts:
            return 0.0
        target_probs = case.oracle_probs(target, PROMPT + drafts)
        draft_probs = drafting.oracle_probs(draft, PROMPT + drafts)
        total = 0.0
        for token_id in np.flatnonzero(draft_probs):
            next_reach = min(1.0, reach * float(target_probs[token_id] / draft_probs[token_id]))
            stopped = draft_probs[token_id] < case.stop_below
            later = 0.0 if stopped else beyond((*drafts, int(token_id)), next_reach)
            total += float(draft_probs[token_id]) * (next_reach + later)
        return total

    return beyond((), 1.0)


def test_acceptance_is_the_formulas_and_never_behind_token_by_token() -> None:
    gained = []
    for case in CASES:
        accepted = case.expected_accepted(Build())
        assert accepted == pytest.approx(expected_accepted(case), abs=1e-12), case.name
        standard = replace(case, verifier="standard").expected_accepted(Build())
        assert accepted >= standard - 1e-12, case.name
        gained.append((case.num_drafts, accepted - standard))
    assert all(abs(gain) < 1e-12 for num_drafts, gain in gained if num_drafts == 1), "one draft is a block of one"
    assert max(gain for _, gain in gained) > 0.05


def test_the_mutants_template_without_a_mistake_is_exact() -> None:
    small = [case for case in CASES if case.num_strings <= 3**3]
    assert max(case.total_variation(Build(block=faulty_block())) for case in small) < MAX_TV


def test_a_longer_prefix_may_pass_where_a_shorter_one_fails() -> None:
    target = [np.array([0.2, 0.8]), np.array([0.9, 0.1]), HALF]
    draft = (np.array([0.5, 0.5]), np.array([0.2, 0.8]))
    # p_1 = 0.4, and p_2 = min(1, 0.4 * 4.5) = 1: the block stands although its first token alone may fail.
    result = verify_block(Proposal((0, 0), draft), lambda place: target[place], FixedNoise(0.99), 0)
    assert result == VerifyResult(2, 0, "bonus")
    assert verify_standard(Proposal((0, 0), draft), lambda place: target[place], FixedNoise(0.99), 0).num_accepted == 0


@pytest.mark.parametrize("proposal", [Proposal(), Proposal((1, 0, 1))])
def test_point_masses_and_nothing_go_to_the_standard_verifier(proposal: Proposal) -> None:
    for seed in range(30):
        one, other = (
            verify(proposal, lambda place: HALF, KeyedNoise(seed), 4) for verify in (verify_block, verify_standard)
        )
        assert one == other


def test_equal_distributions_accept_everything_and_a_forbidden_draft_nothing_after_it() -> None:
    row = np.array([0.1, 0.2, 0.7])
    smallest, largest = FixedNoise(2.0**-53), FixedNoise(1.0 - 2.0**-53)
    assert verify_block(Proposal((0, 1, 2), (row,) * 3), lambda place: row, largest, 0).num_accepted == 3
    asked: list[int] = []

    def target_probs_at(place: int) -> Weights:
        asked.append(place)
        return np.array([0.3, 0.7, 0.0]) if place == 1 else row

    result = verify_block(Proposal((0, 2, 1), (row,) * 3), target_probs_at, smallest, 0)
    assert (result.num_accepted, result.source) == (1, "recovered")
    assert result.token_id != 2
    assert asked == [0, 1], "nothing after a token that the target rules out is looked at"


def test_a_long_unlikely_block_recovers_where_a_product_would_have_ended_at_zero() -> None:
    tiny, rest = 1e-30, 1.0 - 1e-30
    low, high = np.array([tiny, rest]), np.array([rest, tiny])
    target = [low] * 12 + [high] * 12 + [HALF]
    draft = (high,) * 12 + (low,) * 12
    result = verify_block(Proposal((0,) * 24, draft), lambda place: target[place], FixedNoise(0.5), 0)
    assert result == VerifyResult(24, 0, "bonus")


def test_the_replacement_has_the_distribution_of_the_formula() -> None:
    target = [np.array([0.2, 0.8]), np.array([0.3, 0.7]), HALF]
    draft = (np.array([0.5, 0.5]), np.array([0.9, 0.1]))
    # D_1 = (0.4 * 0.7 - 0.1)+ = 0.18, so h_1 = 0.18 / (0.18 + 0.6) = 0.23.
    noise = FixedNoise(0.24)
    assert verify_block(Proposal((0, 0), draft), lambda place: target[place], noise, 0).num_accepted == 0
    noise = FixedNoise(0.22)
    assert verify_block(Proposal((0, 0), draft), lambda place: target[place], noise, 0) == VerifyResult(
        1, 1, "recovered"
    )
    purpose, weights = noise.drawn[-1]
    assert purpose is Purpose.RECOVER
    assert weights.tolist() == pytest.approx([0.0, 0.4 * 0.7 - 0.1])
    assert excess(target[1], draft[1], 0.4).dtype == np.float64


def test_float32_rows_are_judged_in_float64() -> None:
    row = np.array([0.6, 0.4], dtype=np.float32)
    assert excess(row, np.array([0.5, 0.5]), 1.0).tolist() == [float(np.float32(0.6)) - 0.5, 0.0]
