"""The verifiers by name: how drafts are judged, and whose noise they are drawn with. A new verifier adds one entry."""

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
"""``judge(proposal, target_probs_at, noise, position)`` for drafts that come with their distributions."""

Coupling = Literal["none", "seeded", "all"]
"""Which requests' drafts are drawn with the target's own noise, which makes them point masses (arXiv 2408.07978)."""


@dataclass(frozen=True)
class Verifier:
    """How drafts that come with their distributions are judged.

    Point masses need no rule: they are compared with the target's own token, whatever the verifier.
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
            "drafts of seeded requests are coupled with the target's own noise, others are judged as by block",
            verify_block,
            verify_traversal,
            coupling="seeded",
        ),
        Verifier("block", "the drafts of a step are judged together", verify_block, verify_traversal),
        Verifier("standard", "token by token, trees child by child", verify_standard, verify_recursive),
        Verifier(
            "coupled",
            "drafts of all requests are coupled with the target's own noise",
            verify_block,
            verify_traversal,
            coupling="all",
        ),
    )
}
