"""What one step of the engine did and how long it took: the record from which speculation learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.request import Request
from outrider.speculation.costs import PassLoad
from outrider.verification.base import Proposal


@dataclass(frozen=True)
class RequestOutcome:
    """One request's part of a step, after its tokens were committed.

    decoding      the pass read one committed token of the request, and its drafts
    proposal      what was verified; empty without drafts
    num_accepted  drafted tokens that were accepted and kept
    num_gained    tokens committed in the step
    num_rows      scored rows of the pass
    seconds       from logits to committed tokens: probabilities, draws, verification, text
    hidden        [num_rows, layers, hidden_size] float32 for the drafters that ask for hidden states, else None
    """

    request: Request
    decoding: bool
    proposal: Proposal
    num_accepted: int
    num_gained: int
    num_rows: int
    seconds: float
    hidden: NDArray[np.float32] | None = None


@dataclass
class StepReport:
    """A whole step. Times are in seconds. The speculator fills in the times of drafting.

    load             the forward pass, drafts included
    forward_seconds  the forward pass
    seconds          the whole step, from scheduling to the last committed token
    drafting_seconds proposing, by all drafters
    model_seconds    of that, drafting with a model
    """

    outcomes: Sequence[RequestOutcome]
    load: PassLoad
    forward_seconds: float
    seconds: float
    drafting_seconds: float = 0.0
    model_seconds: float = 0.0

    @property
    def num_gained_decoding(self) -> int:
        """Tokens that decoding requests gained."""
        return sum(outcome.num_gained for outcome in self.outcomes if outcome.decoding)

    @property
    def row_seconds(self) -> float:
        """Seconds after the forward pass, of all requests."""
        return sum(outcome.seconds for outcome in self.outcomes)
