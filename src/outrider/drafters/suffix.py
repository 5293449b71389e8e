"""Suffix drafting (Oliaro et al. 2024, arXiv 2411.04975): what followed the latest tokens before, by how often it did.

Looked for in the request's own prompt and output, and in the outputs of requests that ended, which stay for all that
come after. Needs no model, and a step costs the same however much text there is; wins where texts repeat: edited files,
agents, templates, conversations.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider import native
from outrider.drafters.base import DrafterDefaults, DraftRequest, Proposal
from outrider.drafters.text_index import TAIL, TextIndexes
from outrider.request import Request


class SuffixDrafter(DrafterDefaults):
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
        self._min_match, self._floor = min_match, floor
        self._texts = TextIndexes(max_text_tokens)
        self._past = native.library.SuffixIndex(cache_tokens) if cache_tokens else None

    @property
    def nbytes(self) -> int:
        """Memory of all indexes in bytes: 36 for each token of the room that they have; any thread may ask."""
        return self._texts.nbytes + (self._past.nbytes if self._past is not None else 0)

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """Point-mass proposals; empty where nothing matches."""
        return [self._propose(entry) for entry in batch]

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Nothing to roll back: only committed tokens are ever indexed."""

    def forget(self, request_id: str) -> None:
        """Drop the request's own index; the output of one that ended stays for others."""
        request = self._texts.forget(request_id)
        if request is not None and request.finished and self._past is not None:
            self._past.extend(request.output_token_ids)
            self._past.end_text()

    def _propose(self, entry: DraftRequest) -> Proposal:
        request = entry.request
        most, least, floor = entry.max_tokens, self._min_match, self._floor
        token_ids, _, chances, _ = self._texts.of(request).propose(most, min_match=least, floor=floor)
        if self._past is not None and self._past.size:
            tail = request.token_ids[-TAIL:]
            others, _, promises, _ = self._past.propose_after(tail, most, min_match=least, floor=floor)
            if sum(promises) > sum(chances):
                token_ids, chances = others, promises
        return Proposal(tuple(token_ids), chances=tuple(chances))
