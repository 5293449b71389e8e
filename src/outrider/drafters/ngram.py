"""Prompt lookup (Saxena 2023): propose the tokens that followed the latest earlier occurrence of the last n tokens.

A proposal costs dictionary look-ups only. It helps where the output repeats the prompt or itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafters.base import DrafterDefaults, DraftRequest, Proposal
from outrider.request import Request

NGram = tuple[int, ...]


class _Index:
    """For each n-gram of one request, the index of the token after its latest occurrence that has a next token."""

    def __init__(self) -> None:
        self.num_indexed = 0
        self.followed_at: dict[NGram, int] = {}


class NGramDrafter(DrafterDefaults):
    """Proposes the continuation of the longest match, and of the latest one among equally long matches.

    An index per request makes the cost of a step independent of the length of text. Raises ``ValueError`` unless
    1 <= ``min_match`` <= ``max_match``, both in tokens.
    """

    name = "ngram"

    def __init__(self, *, min_match: int, max_match: int) -> None:
        if not 1 <= min_match <= max_match:
            raise ValueError(f"need 1 <= min_match <= max_match, not {min_match} and {max_match}")
        self._lengths = range(max_match, min_match - 1, -1)
        self._indexes: dict[str, _Index] = {}

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """Point-mass proposals; empty for requests without a match."""
        return [self._propose(entry) for entry in batch]

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """No effect: only committed tokens are indexed, so there is nothing to roll back."""

    def forget(self, request_id: str) -> None:
        """Drop the request's index."""
        self._indexes.pop(request_id, None)

    def _propose(self, entry: DraftRequest) -> Proposal:
        tokens = entry.request.token_ids
        index = self._indexes.setdefault(entry.request.request_id, _Index())
        self._extend(index, tokens)
        for length in self._lengths:
            place = index.followed_at.get(tuple(tokens[-length:])) if length < len(tokens) else None
            if place is not None:
                return Proposal(_continuation(tokens, place, entry.max_tokens))
        return Proposal()

    def _extend(self, index: _Index, tokens: list[int]) -> None:
        # Ends in [num_indexed, len(tokens)) are new. tokens[end] follows the n-gram tokens[end - length : end].
        for end in range(max(index.num_indexed, 1), len(tokens)):
            for length in self._lengths:
                if length <= end:
                    index.followed_at[tuple(tokens[end - length : end])] = end
        index.num_indexed = len(tokens)


def _continuation(tokens: list[int], place: int, count: int) -> NGram:
    """``count`` tokens from index ``place``. A continuation that reaches the end of the text restarts at ``place``.

    The last tokens match those ``period`` tokens earlier, so the text is assumed to repeat with that period.
    """
    period = len(tokens) - place
    return tuple(tokens[place + i % period] for i in range(count))
