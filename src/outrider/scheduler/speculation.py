"""Whether to speculate, with which drafter and how far: decided anew in each step, before any draft is drawn.

The decision uses outcomes and times of earlier steps, and of what was retrieved (a function of committed text) the
drafter's own estimate. It never sees a drawn draft, so it changes only how fast tokens come (non-anticipation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.request import Request
from outrider.scheduler.costs import Load
from outrider.scheduler.survival import Survival


@dataclass(frozen=True)
class Draftable:
    """What could be drafted for one request in this step, at most ``max_tokens`` tokens.

    ``survival`` is that of the tokens that were retrieved, empty if none were. ``behind`` is how many committed tokens
    a model drafter has yet to compute for the request; None where none may draft.
    """

    request: Request
    max_tokens: int
    survival: Survival
    behind: int | None = None


@dataclass(frozen=True)
class Choice:
    """The first ``num_tokens`` of what was retrieved, or so many tokens of the model drafter, for one request.

    ``expected`` of them are thought to be accepted. Without tokens ``why`` says what speaks against them.
    """

    num_tokens: int = 0
    by_model: bool = False
    expected: float = 0.0
    why: str = ""


NOTHING_FOUND = "nothing retrieved"
NOT_WORTH_IT = "drafts would not pay"
RESTING = "nothing retrieved for a while, so not looked for now"


class SpeculationController:
    """What the scheduler asks and the engine tells; here with neither clock nor memory, all drafts are verified."""

    def num_draft_tokens(self, request: Request) -> int:
        """The most tokens to make room for in the request's next step, at least 0. There may be less room."""
        raise NotImplementedError

    def why_none(self, request: Request) -> str:
        """Why ``num_draft_tokens`` last said 0 for the request; empty where that is the user's setting."""
        return ""

    def begin_step(self, decoding: Sequence[Request], own: Load, prompts: Load) -> None:
        """A step begins whose pass is, without drafts, ``own`` for the ``decoding`` requests and ``prompts``."""

    def survival(self, request: Request, drafter: str, length: int, chances: Sequence[float] | None) -> Survival:
        """Survival [length] of a retrieved draft; ``chances`` are the drafter's own estimate of it, if it has one."""
        return [1.0] * length if chances is None else chances[:length]

    def plan(self, drafts: Sequence[Draftable]) -> list[Choice]:
        """For each request what to verify in this step: here what was retrieved, else what the model drafts."""
        return [
            Choice(len(draft.survival), expected=sum(draft.survival))
            if len(draft.survival)
            else Choice(0 if draft.behind is None else draft.max_tokens, by_model=True)
            for draft in drafts
        ]

    def observe_outcome(
        self, request: Request, drafter: str, accepted: int, length: int, chances: Sequence[float] | None
    ) -> None:
        """Of a draft of ``length`` tokens the first ``accepted`` came true, be it that they were verified or not."""

    def observe_drafting(self, seconds: float) -> None:
        """The model drafter took ``seconds`` for what the last plan gave it to do."""

    def observe_rows(self, request: Request, rows: int, seconds: float) -> None:
        """What followed the pass (distribution, draws, verification, text) took ``seconds`` for ``rows`` rows of a
        request."""

    def end_step(self, load: Load, pass_seconds: float, step_seconds: float, gained: int) -> None:
        """A step ended: its pass, drafts included, took ``pass_seconds``, all of it ``step_seconds``."""

    def plain_seconds(self) -> float | None:
        """What this step would have taken without any draft, by what is known; None if nothing is known."""
        return None

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request that ended."""


class FixedSpeculation(SpeculationController):
    """The same K for every request and step."""

    def __init__(self, num_speculative_tokens: int) -> None:
        if num_speculative_tokens < 0:
            raise ValueError(f"num_speculative_tokens={num_speculative_tokens} must not be negative")
        self._k = num_speculative_tokens

    def num_draft_tokens(self, request: Request) -> int:
        """K as configured."""
        return self._k
