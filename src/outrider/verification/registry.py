"""The verifiers by name. A new verifier adds one entry to ``VERIFIERS``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from outrider.sampling.noise import Noise
from outrider.verification.base import Proposal, TargetProbs, VerifyResult
from outrider.verification.block import verify_block
from outrider.verification.standard import verify_standard
from outrider.verification.tree import verify_recursive, verify_traversal

Judge = Callable[[Proposal, TargetProbs, Noise, int], VerifyResult]
"""``judge(proposal, target_probs_at, noise, position)``. The proposal has ``probs``."""

Coupling = Literal["none", "seeded", "all"]
"""The requests whose drafts are drawn with the TARGET noise. Such drafts are point masses (arXiv 2408.07978)."""


@dataclass(frozen=True)
class Verifier:
    """How proposals with ``probs`` are verified: ``chain`` for chains, ``tree`` for trees.

    Point masses are matched with the target's own tokens by every verifier.
    """

    name: str
    description: str
    chain: Judge
    tree: Judge
    coupling: Coupling = "none"


VERIFIERS = {
    verifier.name: verifier
    for verifier in (
        Verifier(
            "auto",
            "drafts of seeded requests are coupled with the target's noise, other drafts are verified as by block",
            verify_block,
            verify_traversal,
            coupling="seeded",
        ),
        Verifier("block", "all drafts of a step are verified together", verify_block, verify_traversal),
        Verifier("standard", "chains token by token, trees child by child", verify_standard, verify_recursive),
        Verifier(
            "coupled",
            "drafts of all requests are coupled with the target's noise",
            verify_block,
            verify_traversal,
            coupling="all",
        ),
    )
}
