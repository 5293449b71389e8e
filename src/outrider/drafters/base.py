"""What a drafter is: two verbs, *propose* and *observe the outcome*, and one rule.

The rule: a proposal is either a point mass, its tokens a deterministic function of what is committed, or it comes with
the very distribution that each token was drawn from. How a drafter finds its tokens never changes what is emitted, only
how fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.request import Request
from outrider.sampling.noise import Noise
from outrider.sampling.request_sampler import RequestSampler
from outrider.verification.base import Proposal, ProposalNote

__all__ = ["DraftRequest", "Drafter", "DrafterDefaults", "ExtendedDrafter", "Proposal", "ProposalNote", "extended"]


@dataclass(frozen=True)
class DraftRequest:
    """One request to draft for: at most ``max_tokens`` >= 1 tokens, to follow ``request.token_ids``.

    ``noise`` is that of this step. ``sampler`` turns logits into the distribution that the request asks for.
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


class ExtendedDrafter(Drafter, Protocol):
    """What the engine can use of a drafter beside its verbs; ``DrafterDefaults`` has a default for each."""

    @property
    def nbytes(self) -> int:
        """Memory in bytes that grows with the text it has seen."""
        ...

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Layers of the target whose input it needs, for every scored row; see ``ModelRunner.forward``."""
        ...

    def num_uncomputed_tokens(self, request: Request) -> int:
        """Committed tokens of the request that it has yet to compute before it can draft; at least 1."""
        ...

    def observe_hidden(self, request: Request, hidden: NDArray[np.float32]) -> None:
        """Hidden states [1 + accepted, layers, hidden_size] of the last step, after ``observe``.

        Row 0 belongs to the last token committed before the step, each further row to an accepted draft.
        """
        ...

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless its blocks add up."""
        ...


class DrafterDefaults:
    """Defaults of all that a drafter may offer beside its verbs. Inherit and override what applies."""

    @property
    def nbytes(self) -> int:
        """No memory worth counting."""
        return 0

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """No hidden states."""
        return ()

    def num_uncomputed_tokens(self, request: Request) -> int:
        """The last committed token."""
        return 1

    def observe_hidden(self, request: Request, hidden: NDArray[np.float32]) -> None:
        """Nothing to learn."""

    def check_integrity(self) -> None:
        """No blocks."""


class _Plain(DrafterDefaults):
    """A drafter that has the verbs only."""

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        self.drafter = drafter

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        return self.drafter.propose(batch)

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        self.drafter.observe(request, num_drafted, num_accepted)

    def forget(self, request_id: str) -> None:
        self.drafter.forget(request_id)


def extended(drafter: Drafter) -> ExtendedDrafter:
    """``drafter`` with defaults for what it does not offer."""
    return drafter if isinstance(drafter, DrafterDefaults) else _Plain(drafter)
