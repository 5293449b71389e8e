"""Native suffix indexes of the requests' own texts, updated when they are used; see csrc/suffix.h."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outrider import native
from outrider.request import Request

if TYPE_CHECKING:
    from outrider.native import library

TAIL = 64
"""Number of last tokens that are compared, at most: the longest match."""


class TextIndexes:
    """One suffix index of committed tokens per request."""

    def __init__(self, max_text_tokens: int = 1 << 20) -> None:
        """Index the latest ``max_text_tokens`` tokens of each request.

        Raises ``ConfigError`` if the native library is not built.
        """
        self._new_index = native.library.SuffixIndex
        self._max_text_tokens = max_text_tokens
        self._texts: dict[str, tuple[Request, library.SuffixIndex, int]] = {}

    @property
    def nbytes(self) -> int:
        """Memory of all indexes in bytes: 36 per token of capacity. Safe to call from any thread."""
        return sum(index.nbytes for _, index, _ in list(self._texts.values()))

    def of(self, request: Request) -> library.SuffixIndex:
        """The request's index, updated with all of ``request.token_ids``."""
        _, index, num_indexed = self._texts.get(request.request_id, (request, None, 0))
        if index is None:
            index = self._new_index(min(self._max_text_tokens, request.max_total_tokens))
        if num_indexed < request.num_tokens:
            index.extend(request.token_ids[num_indexed:])
            self._texts[request.request_id] = (request, index, request.num_tokens)
        return index

    def forget(self, request_id: str) -> Request | None:
        """Drop the request's index and return the request; None if there was no index."""
        request, _, _ = self._texts.pop(request_id, (None, None, 0))
        return request


class DraftLookUp:
    """Looks up likely continuations of a request's text plus some drafts in the request's own text."""

    def __init__(self, indexes: TextIndexes, request: Request, floor: float) -> None:
        """Leave out tokens whose estimated probability is below ``floor``, in [0, 1]."""
        self._index = indexes.of(request)
        self._before = request.token_ids[-TAIL:]
        self._floor = floor

    def __call__(self, drafted: Sequence[int], most: int) -> list[int]:
        """At most ``most`` tokens after ``drafted``; empty without a match."""
        tail = [*self._before, *drafted][-TAIL:]
        return self._index.propose_after(tail, most, floor=self._floor)[0]
