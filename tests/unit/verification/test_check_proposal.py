"""A drafter that breaks its contract is told how."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.verification.base import Proposal, check_proposal

EVEN = np.full(4, 0.25, dtype=np.float32)


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal(),
        Proposal((), ()),
        Proposal((0, 3)),
        Proposal((0, 3), (EVEN, EVEN)),
        Proposal((1,), (np.array([0.0, 1.0, 0.0, 0.0]),)),
    ],
)
def test_sound_proposals_pass(proposal: Proposal) -> None:
    check_proposal(proposal, 4, 2)


@pytest.mark.parametrize(
    ("proposal", "problem"),
    [
        (Proposal((0, 1, 2)), "proposed 3 tokens where at most 2 were granted"),
        (Proposal((0, 4)), "token 1 is id 4, outside the vocabulary of 4 tokens"),
        (Proposal((-1,)), "token 0 is id -1, outside the vocabulary of 4 tokens"),
        (Proposal((0, 1), (EVEN,)), "proposed 2 tokens with 1 rows of draft_probs"),
        (Proposal((0,), (EVEN[:3],)), r"draft_probs of token 0 have shape \(3,\), not \(4,\)"),
        (Proposal((0,), (EVEN * 2,)), r"draft_probs of token 0 sum to 2\.0, not 1"),
        (Proposal((0,), (EVEN * np.nan,)), "draft_probs of token 0 sum to nan, not 1"),
        (Proposal((0,), (np.array([np.inf, 0, 0, 0]),)), "draft_probs of token 0 sum to inf, not 1"),
        (Proposal((0,), (np.array([1.5, -0.5, 0, 0]),)), r"draft_probs of token 0 hold -0\.5, below 0"),
        (
            Proposal((0, 1), (EVEN, np.array([1.0, 0, 0, 0]))),
            "token 1 is id 1, but its own draft_probs give it probability 0",
        ),
    ],
)
def test_broken_proposals_are_refused_by_what_is_wrong(proposal: Proposal, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_proposal(proposal, 4, 2)
