"""Drafting from text that the caller expects as the answer: "predicted outputs", such as a file that is to be edited.

Follows the prediction token by token; where the answer departs from it, finds the place at which it comes back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.drafters.base import DrafterDefaults, DraftRequest, Proposal
from outrider.request import Request

_LONGEST = 4
"""As many of the latest tokens are looked for in the prediction, fewer if so many do not occur."""
_WINDOW = 64
"""A single token is only looked for so far ahead: further on it would be found by chance."""


@dataclass
class _Followed:
    """One request's prediction, and how far the answer has come in it."""

    tokens: tuple[int, ...]
    places: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    """n-gram -> the places after each of its occurrences, ascending."""
    at: int = 0
    """The place that is expected next."""
    left: int = 0
    """The place up to which the answer last agreed: where it departed, if it has."""
    num_seen: int = 0
    """Output tokens that ``at`` has been moved by."""

    def __post_init__(self) -> None:
        for end in range(1, len(self.tokens) + 1):
            for length in range(1, min(_LONGEST, end) + 1):
                self.places.setdefault(self.tokens[end - length : end], []).append(end)

    def follow(self, output: Sequence[int]) -> None:
        """Move on by the output tokens not seen yet."""
        for count in range(self.num_seen + 1, len(output) + 1):
            expected = self.tokens[self.at] if self.at < len(self.tokens) else None
            if output[count - 1] == expected:
                self.at = self.left = self.at + 1
            else:
                self.at, found = self._anchor(output[max(0, count - _LONGEST) : count])
                self.left = self.at if found else self.left
        self.num_seen = len(output)

    def _anchor(self, output: Sequence[int]) -> tuple[int, bool]:
        """The place after the longest of the latest n-grams, and True: the nearest ahead, else the nearest behind.

        If not even the last token is near, it is taken to stand in place of the one expected, and False.
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
    """Point-mass drafts from each request's ``prediction_token_ids``; none for requests that bring none."""

    name = "prediction"

    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """What comes next in the predictions."""
        return [self._propose(entry) for entry in batch]

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Nothing to roll back: the place is found from committed tokens only."""

    def forget(self, request_id: str) -> None:
        """Drop the request's place; it is found anew from its tokens."""
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
