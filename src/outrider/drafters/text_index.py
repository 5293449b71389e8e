"""Native indexes of requests' own texts, caught up when asked for. What follows from a match is csrc/suffix.cpp's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outrider import native
from outrider.request import Request

if TYPE_CHECKING:
    from outrider.native import library

TAIL = 64
"""As many of the latest tokens are looked for, at most."""


class TextIndexes:
    """An index of committed tokens for each request."""

    def __init__(self, max_text_tokens: int = 1 << 20) -> None:
        """Of longer texts the latest ``max_text_tokens`` are kept.

        Raises ``ConfigError`` where the native library is not built.
        """
        self._new_index = native.library.SuffixIndex
        self._max_text_tokens = max_text_tokens
        self._texts: dict[str, tuple[Request, library.SuffixIndex, int]] = {}

    @property
    def nbytes(self) -> int:
        """Memory in bytes: 36 for each token of the room that the indexes have; any thread may ask."""
        return sum(index.nbytes for _, index, _ in list(self._texts.values()))

    def of(self, request: Request) -> library.SuffixIndex:
        """The request's index, with all of ``request.token_ids``."""
        _, index, num_indexed = self._texts.get(request.request_id, (request, None, 0))
        if index is None:
            index = self._new_index(min(self._max_text_tokens, request.max_total_tokens))
        if num_indexed < request.num_tokens:
            index.extend(request.token_ids[num_indexed:])
            self._texts[request.request_id] = (request, index, request.num_tokens)
        return index

    def forget(self, request_id: str) -> Request | None:
        """Drop the request's index; the request, if there was one."""
        request, _, _ = self._texts.pop(request_id, (None, None, 0))
        return request


class DraftLookUp:
    """What may follow a request's text and some drafts, by what followed the like in the text."""

    def __init__(self, indexes: TextIndexes, request: Request, floor: float) -> None:
        """Tokens whose estimated chance is below ``floor`` are left out."""
        self._index = indexes.of(request)
        self._before = request.token_ids[-TAIL:]
        self._floor = floor

    def __call__(self, drafted: Sequence[int], most: int) -> list[int]:
        """At most ``most`` tokens to follow ``drafted``."""
        tail = [*self._before, *drafted][-TAIL:]
        return self._index.propose_after(tail, most, floor=self._floor)[0]
