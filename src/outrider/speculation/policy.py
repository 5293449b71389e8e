"""How many tokens to draft, and with which drafter: decided in each step before any draft is drawn.

A decision uses outcomes and times of earlier steps, and for text that was looked up (a function of committed tokens)
the drafter's own estimate. It never depends on a drawn draft, so it changes only how fast tokens come
(non-anticipation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from outrider.request import Request
from outrider.speculation.acceptance import AcceptanceProbs
from outrider.speculation.costs import PassLoad
from outrider.speculation.report import StepReport

NOTHING_FOUND = "nothing retrieved"
NOT_WORTH_IT = "drafts would not pay"
PAUSED = "nothing retrieved for a while, so not looked for now"


@dataclass(frozen=True)
class StepOutlook:
    """The coming step without drafts: its pass, the requests that decode in it, and the number of all requests."""

    load: PassLoad
    decoding: Sequence[Request]
    num_requests: int


@dataclass(frozen=True)
class Draftable:
    """What can be drafted for one request in this step, at most ``max_tokens`` tokens.

    retrieved          acceptance probabilities of the tokens that were looked up; empty if none were found
    modelled           acceptance probabilities of tokens that the model would draft; empty where it must not draft
    uncomputed_tokens  committed tokens of the request that the model has not computed yet
    """

    request: Request
    max_tokens: int
    retrieved: AcceptanceProbs = ()
    modelled: AcceptanceProbs = ()
    uncomputed_tokens: int = 1


@dataclass(frozen=True)
class Choice:
    """The first ``num_tokens`` of what was looked up, or ``num_tokens`` tokens of the model, for one request.

    ``expected`` is the expected number of accepted tokens. Without tokens ``why`` gives the reason.
    """

    num_tokens: int = 0
    by_model: bool = False
    expected: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Plan:
    """One choice for each draftable request; seconds that the step would take without drafts, if known."""

    choices: Sequence[Choice] = field(default_factory=list)
    plain_seconds: float | None = None


class Policy(Protocol):
    """Decides how much is drafted. The speculator is the only caller: ``budget``, then ``plan``, then ``learn``."""

    def budget(self, request: Request, steps_without_drafts: int) -> int:
        """The most tokens to reserve slots for in the request's next step, at least 0.

        ``steps_without_drafts`` counts the latest steps in a row in which the request could have drafted and did not.
        """
        ...

    def plan(self, step: StepOutlook, drafts: Sequence[Draftable]) -> Plan:
        """For each of ``drafts`` what to verify in this step. Called once in each step, also without ``drafts``."""
        ...

    def learn(self, report: StepReport) -> None:
        """Learn from the step that was planned last."""
        ...


class FixedPolicy:
    """The same K for every request and step: all of what was looked up, else what the model drafts."""

    def __init__(self, num_speculative_tokens: int) -> None:
        if num_speculative_tokens < 0:
            raise ValueError(f"num_speculative_tokens={num_speculative_tokens} must not be negative")
        self._k = num_speculative_tokens

    def budget(self, request: Request, steps_without_drafts: int) -> int:
        """K as configured."""
        return self._k

    def plan(self, step: StepOutlook, drafts: Sequence[Draftable]) -> Plan:
        """Everything that can be drafted."""
        return Plan(
            [
                Choice(len(draft.retrieved), expected=sum(draft.retrieved))
                if len(draft.retrieved)
                else Choice(len(draft.modelled), by_model=True, expected=sum(draft.modelled))
                for draft in drafts
            ]
        )

    def learn(self, report: StepReport) -> None:
        """Nothing: K is fixed."""
