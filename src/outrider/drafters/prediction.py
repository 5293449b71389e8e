"""Draft from the output that the caller expects ("predicted outputs"), for example a file to be edited.

The drafter follows the prediction token by token. Where the output differs, it searches the prediction for the position
at which the output continues.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.drafters.base import DrafterDefaults, DraftRequest, Proposal
from outrider.request import Request

_LONGEST = 4
"""Longest n-gram, in tokens, that is searched for in the prediction. Shorter ones are tried if it does not occur."""
_WINDOW = 64
"""Search distance, in tokens, for a single token. A match further ahead is likely a coincidence."""


@dataclass
class _Followed:
    """The prediction of one request, and the position in it that the output has reached."""

    tokens: tuple[int, ...]
    places: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    """From an n-gram to the ascending positions after its occurrences."""
    at: int = 0
    """The position of the next expected token."""
    left: int = 0
    """The position after the last token of the prediction that the output agreed with."""
    num_seen: int = 0
    """Number of output tokens that ``at`` accounts for."""

    def __post_init__(self) -> None:
        for end in range(1, len(self.tokens) + 1):
            for length in range(1, min(_LONGEST, end) + 1):
                self.places.setdefault(self.tokens[end - length : end], []).append(end)

    def follow(self, output: Sequence[int]) -> None:
        """Update the position by the output tokens after the first ``num_seen``."""
        for count in range(self.num_seen + 1, len(output) + 1):
            expected = self.tokens[self.at] if self.at < len(self.tokens) else None
            if output[count - 1] == expected:
                self.at = self.left = self.at + 1
            else:
                self.at, found = self._anchor(output[max(0, count - _LONGEST) : count])
                self.left = self.at if found else self.left
        self.num_seen = len(output)

    def _anchor(self, output: Sequence[int]) -> tuple[int, bool]:
        """The position after the longest matching n-gram at the end of ``output``, and whether one was found.

        The nearest match after ``left`` is preferred to the nearest one before it. If there is no match, the last
        token is assumed to replace the expected one.
        """
        for length in range(min(_LONGEST, len(output)), 0, -1):
            places = self.places.get(tuple(output[-length:]), [])
            ahead = bisect_left(places, self.left)
            if ahead < len(places) and (length > 1 or places[ahead] - self.left <= _WINDOW):
                return places[ahead], True
            if length > 1 and ahead:
                return places[ahead - 1], True
        return min(self.at + 1, len(self.tokens)), False


class PredictionDrafter(DrafterDefaults):
    """Point-mass drafts from each request's ``prediction_token_ids``."""

    name = "prediction"

    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """The next tokens of each prediction; empty for requests without one."""
        return [self._propose(entry) for entry in batch]

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """No effect: the position depends on committed tokens only, so there is nothing to roll back."""

    def forget(self, request_id: str) -> None:
        """Drop the request's position. It is computed again from the output if the request continues."""
        self._followed.pop(request_id, None)

    def _propose(self, entry: DraftRequest) -> Proposal:
        request = entry.request
        if not request.prediction_token_ids:
            return Proposal()
        followed = self._followed.get(request.request_id)
        if followed is None:
            followed = self._followed[request.request_id] = _Followed(request.prediction_token_ids)
        followed.follow(request.output_token_ids)
        return Proposal(followed.tokens[followed.at : followed.at + entry.max_tokens])
