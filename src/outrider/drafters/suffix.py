"""Suffix drafting (Oliaro et al. 2024, arXiv 2411.04975): what followed the latest tokens before, by how often it did.

Looked for in the request's own prompt and output, and in the outputs of requests that ended, which stay for all that
come after. Needs no model, and a step costs the same however much text there is; wins where texts repeat: edited files,
agents, templates, conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.drafters.base import DraftRequest, Proposal
from outrider.ops import native
from outrider.request import Request

_TAIL = 64
"""As many of the latest tokens are looked for in other texts."""


@dataclass
class _Text:
    """One request's own text: the native index, and how much of ``request.token_ids`` it holds."""

    request: Request
    index: Any
    num_indexed: int = 0


class SuffixDrafter:
    """Of what the request's own text and earlier outputs suggest, the draft that promises more accepted tokens.

    A match of m tokens lets a draft of any length follow, token by token while its estimated chance to be reached
    and accepted is at least ``floor``; the estimate is described in csrc/suffix.cpp. Proposals are point masses.
    """

    name = "suffix"

    def __init__(
        self, *, min_match: int = 1, floor: float = 0.2, cache_tokens: int = 1 << 20, max_text_tokens: int = 1 << 20
    ) -> None:
        """``cache_tokens`` of earlier outputs are kept, the oldest forgotten first; 0 keeps none.

        Raises ``ConfigError`` where the native library is not built.
        """
        self._library = native.library()
        self._options = {"min_match": min_match, "floor": floor}
        self._max_text_tokens = max_text_tokens
        self._texts: dict[str, _Text] = {}
        self._past: Any = self._library.SuffixIndex(cache_tokens) if cache_tokens else None

    @property
    def nbytes(self) -> int:
        """Memory of all indexes in bytes: 36 for each token of the room that they have; any thread may ask."""
        indexes = [text.index for text in list(self._texts.values())] + ([self._past] if self._past is not None else [])
        return sum(index.nbytes for index in indexes)

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """Point-mass proposals; empty where nothing matches."""
        return [self._propose(entry) for entry in batch]

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Nothing to roll back: only committed tokens are ever indexed."""

    def forget(self, request_id: str) -> None:
        """Drop the request's own index; the output of one that ended stays for others."""
        text = self._texts.pop(request_id, None)
        if text is not None and text.request.finished and self._past is not None:
            self._past.extend(text.request.output_token_ids)
            self._past.end_text()

    def _propose(self, entry: DraftRequest) -> Proposal:
        request = entry.request
        text = self._texts.get(request.request_id)
        if text is None:
            limit = min(self._max_text_tokens, request.max_total_tokens)
            text = self._texts[request.request_id] = _Text(request, self._library.SuffixIndex(limit))
        text.index.extend(request.token_ids[text.num_indexed :])
        text.num_indexed = request.num_tokens
        token_ids, _, chances, _ = text.index.propose(entry.max_tokens, **self._options)
        if self._past is not None and self._past.size:
            tail = request.token_ids[-_TAIL:]
            others, _, promises, _ = self._past.propose_after(tail, entry.max_tokens, **self._options)
            if sum(promises) > sum(chances):
                token_ids, chances = others, promises
        return Proposal(tuple(token_ids), chances=tuple(chances))
