"""What a drafter is: two verbs, *propose* and *observe the outcome*, and one rule.

The rule: a proposal is either a point mass, its tokens a deterministic function of what is committed, or it comes
with the very distribution that each token was drawn from. How a drafter finds its tokens never changes what is emitted,
only how fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.request import Request
from outrider.sampling.noise import Noise
from outrider.sampling.request_sampler import RequestSampler
from outrider.verification.base import Proposal, ProposalNote

__all__ = ["DraftRequest", "Drafter", "Proposal", "ProposalNote"]


@dataclass(frozen=True)
class DraftRequest:
    """One request to draft for: at most ``max_tokens`` >= 1 tokens, to follow ``request.token_ids``.

    ``noise`` is that of this step; ``probabilities`` makes logits the distribution that the request asks for.
    """

    request: Request
    max_tokens: int
    noise: Noise
    sampler: RequestSampler


class Drafter(Protocol):
    """Proposes tokens. Its state is its own affair; ``request.token_ids`` is the truth to catch up with."""

    name: str

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """One proposal per entry, in order, each of 0 to ``max_tokens`` tokens."""
        ...

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """The outcome of the last proposal; ``request.token_ids`` now ends with what was committed."""
        ...

    def forget(self, request_id: str) -> None:
        """Drop all state of a request that ended or was preempted; harmless if there is none."""
        ...
