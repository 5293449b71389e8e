"""How many tokens to draft for a request in its next step, decided before anything is drafted."""

from __future__ import annotations

from typing import Protocol

from outrider.request import Request


class SpeculationController(Protocol):
    """Decides K per request and step. It must not look at the drafts themselves (non-anticipation)."""

    def num_draft_tokens(self, request: Request) -> int:
        """K for the request's next step, at least 0. The scheduler may lower it for want of room."""
        ...


class FixedSpeculation:
    """The same K for every request and step."""

    def __init__(self, num_speculative_tokens: int) -> None:
        if num_speculative_tokens < 0:
            raise ValueError(f"num_speculative_tokens={num_speculative_tokens} must not be negative")
        self._k = num_speculative_tokens

    def num_draft_tokens(self, request: Request) -> int:
        """K as configured."""
        return self._k
