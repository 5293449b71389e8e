"""The rows of a pass shared out to the drafts that gain most. Pure mathematics: no clock, no state.

Let R requests take part in a step that takes C(n) seconds with n drafted rows beside the requests' own. With E_r drafts
of request r expected to be accepted, r advances by 1 + E_r tokens in C(n) seconds. The allocation maximises

    sum over r of log(1 + E_r)  -  R log(C(n) / C(0)),

the sum of the logarithms of all requests' speeds relative to K = 0 (proportional fairness, Kelly et al. 1998). For one
request, or for equal ones, this is the most tokens per second. Where requests differ, the drafted rows of one request
never slow the others down by more than they gain. K = 0 is always a candidate, with gain 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.speculation.acceptance import AcceptanceProbs


@dataclass(frozen=True)
class RowPrices:
    """Costs of drafted rows in one step.

    step_seconds  [rows + 1], the step with 0, 1 … drafted rows
    row_seconds   [requests], after the pass, for each drafted row of that request
    num_requests  R: all requests of the step
    """

    step_seconds: Sequence[float]
    row_seconds: Sequence[float]
    num_requests: int


@dataclass
class Allocation:
    """Drafted tokens for each request, whether the model drafts them, and how many are expected to be accepted.

    ``gain`` is the objective. ``draft_seconds`` is the predicted time of the model, of which ``prefill_seconds`` are
    for text that it computes now and uses in later steps too.
    """

    counts: list[int]
    by_model: list[bool]
    expected: list[float]
    gain: float = 0.0
    draft_seconds: float = 0.0
    prefill_seconds: float = 0.0

    @classmethod
    def none(cls, num_requests: int) -> Allocation:
        """No drafts for anyone."""
        return cls([0] * num_requests, [False] * num_requests, [0.0] * num_requests)

    @property
    def num_drafting(self) -> int:
        """Requests that draft."""
        return sum(count > 0 for count in self.counts)


def _loss(slot: tuple[float, int, float]) -> float:
    return slot[0]


def allocate(
    offers: Sequence[AcceptanceProbs], by_model: Sequence[bool], prices: RowPrices, draft_seconds: float = 0.0
) -> Allocation:
    """The allocation of greatest gain, where ``offers[r]`` are the acceptance probabilities of request r's draft.

    A draft is taken from its beginning. Drafting itself takes ``draft_seconds`` in all if anything is allotted.
    """
    slots = []
    for r, probs in enumerate(offers):
        speed = 1.0
        for prob in probs:
            slots.append((-math.log1p(prob / speed), r, prob))
            speed += prob
    slots.sort(key=_loss)  # stable: the slots of one request stay in the order of its draft
    best, num_slots, gain, seconds = Allocation.none(len(offers)), 0, 0.0, draft_seconds
    for count, (loss, r, _) in enumerate(slots, 1):
        gain -= loss
        seconds += prices.row_seconds[r]
        slowdown = (prices.step_seconds[count] + seconds) / prices.step_seconds[0]
        net = gain - prices.num_requests * math.log(slowdown)
        if net > best.gain:
            best.gain, num_slots = net, count
    for _, r, prob in slots[:num_slots]:
        best.counts[r] += 1
        best.expected[r] += prob
    best.by_model = [bool(model and count) for model, count in zip(by_model, best.counts, strict=True)]
    return best
