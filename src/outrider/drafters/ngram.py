"""Prompt lookup (Saxena 2023): propose what followed the last occurrence of the latest tokens.

Costs nothing but a dictionary look-up, and wins where the output repeats its input or itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafters.base import DrafterDefaults, DraftRequest, Proposal
from outrider.request import Request

NGram = tuple[int, ...]


class _Index:
    """For each n-gram of one request the place after its latest occurrence that something follows."""

    def __init__(self) -> None:
        self.num_indexed = 0
        self.followed_at: dict[NGram, int] = {}


class NGramDrafter(DrafterDefaults):
    """Longest match first, among equals the latest; an index per request makes a step independent of its length."""

    name = "ngram"

    def __init__(self, *, min_match: int, max_match: int) -> None:
        if not 1 <= min_match <= max_match:
            raise ValueError(f"need 1 <= min_match <= max_match, not {min_match} and {max_match}")
        self._lengths = range(max_match, min_match - 1, -1)
        self._indexes: dict[str, _Index] = {}

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """Point-mass proposals; empty where nothing matches."""
        return [self._propose(entry) for entry in batch]

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Nothing to roll back: only committed tokens are ever indexed."""

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
        # Ends [num_indexed, len(tokens)) are new: the n-gram that ends before `end` is followed by tokens[end].
        for end in range(max(index.num_indexed, 1), len(tokens)):
            for length in self._lengths:
                if length <= end:
                    index.followed_at[tuple(tokens[end - length : end])] = end
        index.num_indexed = len(tokens)


def _continuation(tokens: list[int], place: int, count: int) -> NGram:
    """``count`` tokens from ``place`` on; a continuation that reaches the end goes on with its own beginning.

    If the latest tokens match ``period`` tokens earlier, the text is taken to repeat with that period.
    """
    period = len(tokens) - place
    return tuple(tokens[place + i % period] for i in range(count))
