"""Suffix drafting (Oliaro et al. 2024, arXiv 2411.04975): propose the most frequent continuation of the last tokens.

Matches come from the request's own prompt and output, and from the outputs of finished requests. No model is needed.
The cost of a step does not depend on the length of text. It helps where texts repeat: edited files, agents, templates,
conversations.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider import native
from outrider.drafters.base import DrafterDefaults, DraftRequest, Proposal
from outrider.drafters.text_index import TAIL, TextIndexes
from outrider.request import Request


class SuffixDrafter(DrafterDefaults):
    """Drafts from the request's own text or from earlier outputs, whichever has more expected accepted tokens.

    A draft continues while the estimated probability that its next token is reached and accepted is at least ``floor``.
    csrc/suffix.cpp describes the estimate. Proposals are point masses.
    """

    name = "suffix"

    def __init__(
        self, *, min_match: int = 1, floor: float = 0.2, cache_tokens: int = 1 << 20, max_text_tokens: int = 1 << 20
    ) -> None:
        """Keep the latest ``cache_tokens`` tokens of earlier outputs (0 keeps none).

        ``min_match`` is the shortest match in tokens, ``floor`` is in [0, 1]. Of a request's own text the latest
        ``max_text_tokens`` are indexed. Raises ``ConfigError`` if the native library is not built.
        """
        self._min_match, self._floor = min_match, floor
        self._texts = TextIndexes(max_text_tokens)
        self._past = native.library.SuffixIndex(cache_tokens) if cache_tokens else None

    @property
    def nbytes(self) -> int:
        """Memory of all indexes in bytes: 36 per token of capacity. Safe to call from any thread."""
        return self._texts.nbytes + (self._past.nbytes if self._past is not None else 0)

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """Point-mass proposals; empty for requests without a match."""
        return [self._propose(entry) for entry in batch]

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """No effect: only committed tokens are indexed, so there is nothing to roll back."""

    def forget(self, request_id: str) -> None:
        """Drop the request's own index. The output of a finished request is kept for later requests."""
        request = self._texts.forget(request_id)
        if request is not None and request.finished and self._past is not None:
            self._past.extend(request.output_token_ids)
            self._past.end_text()

    def _propose(self, entry: DraftRequest) -> Proposal:
        request = entry.request
        most, least, floor = entry.max_tokens, self._min_match, self._floor
        token_ids, chances = self._texts.of(request).propose(most, min_match=least, floor=floor)
        if self._past is not None and self._past.size:
            tail = request.token_ids[-TAIL:]
            others, other_chances = self._past.propose_after(tail, most, min_match=least, floor=floor)
            if sum(other_chances) > sum(chances):
                token_ids, chances = others, other_chances
        return Proposal(tuple(token_ids), chances=tuple(chances))
