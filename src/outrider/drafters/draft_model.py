"""A smaller model of the same vocabulary drafts, with K/V of its own, and computes what it has not computed yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from torch import Tensor

from outrider.drafters.base import DraftRequest, Proposal
from outrider.ops.native import as_array, max_and_argmax
from outrider.request import Request
from outrider.runner.model_runner import Chunk, ModelRunner
from outrider.sampling.law import greedy_token, law
from outrider.sampling.noise import Purpose, Weights

Coupled = Literal["none", "seeded", "all"]
"""Which requests get drafts drawn with the target's own noise."""


@dataclass
class _Draft:
    """One request's proposal while it grows."""

    entry: DraftRequest
    point_mass: bool
    token_ids: list[int] = field(default_factory=list)
    probs: list[Weights] = field(default_factory=list)
    stuck: bool = False
    """Of what the request allows here, the draft knows no token."""

    @property
    def done(self) -> bool:
        return self.stuck or len(self.token_ids) >= self.entry.max_tokens

    def proposal(self) -> Proposal:
        return Proposal(tuple(self.token_ids), None if self.point_mass else tuple(self.probs))


class DraftModelDrafter:
    """Drafts token by token, all requests of the batch in one pass per token.

    Greedy requests get the argmax and ``coupled`` ones the token that the target's own noise would choose under the
    draft's law: both are point masses, and the answer does not depend on the draft (arXiv 2408.07978). All others get a
    sample with its law.

    ``num_computed`` of a request counts the committed tokens that have K/V here. After a step whose K drafts were all
    accepted the last draft was never fed, so the cache is one token behind; after steps without drafts it is further
    behind. Both are made good by the next proposal's first pass.
    """

    name = "draft_model"

    def __init__(
        self,
        runner: ModelRunner,
        *,
        target_vocab_size: int,
        max_num_batched_tokens: int,
        coupled: Coupled = "seeded",
        token_ids: Sequence[int] | None = None,
    ) -> None:
        """``token_ids`` are the tokens that the rows of a trimmed output stand for; without, row i is token i."""
        rows = min(runner.model.vocab_size, target_vocab_size)  # a draft may be padded further than the target
        self._token_ids = np.arange(rows) if token_ids is None else np.asarray(token_ids, dtype=np.int64)
        self._runner = runner
        self._vocab_size = target_vocab_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self._coupled = coupled
        self._num_computed: dict[str, int] = {}

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """Proposals of ``max_tokens`` tokens; shorter where the draft's context or cache has no more room."""
        proposals = {entry.request.request_id: Proposal() for entry in batch}
        drafts = [draft for entry in batch if (draft := self._begin(entry)) is not None]
        growing = drafts
        for draft, logits in zip(drafts, self._catch_up(drafts), strict=True):
            self._extend(draft, logits)
        while growing := [draft for draft in growing if not draft.done]:
            chunks = [self._next_chunk(draft) for draft in growing]
            for draft, logits in zip(growing, self._runner.forward(chunks), strict=True):
                self._extend(draft, logits)
        proposals.update((draft.entry.request.request_id, draft.proposal()) for draft in drafts)
        return list(proposals.values())

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Keep the K/V of what was accepted and fed; the last draft was never fed."""
        computed = self._num_computed.get(request.request_id)
        if computed is None or num_drafted == 0:
            return
        computed += min(num_accepted, num_drafted - 1)
        self._num_computed[request.request_id] = computed
        self._runner.kv.truncate(request.request_id, computed)

    def forget(self, request_id: str) -> None:
        """Give the request's blocks back."""
        self._num_computed.pop(request_id, None)
        self._runner.kv.free(request_id)

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless the draft's blocks add up."""
        self._runner.kv.check_integrity(live=self._num_computed)

    def _begin(self, entry: DraftRequest) -> _Draft | None:
        request = entry.request
        room = self._runner.model.max_model_len - request.num_tokens
        wanted = min(entry.max_tokens, room + 1)  # the last draft is not fed, so it needs no place
        if wanted < 1:
            return None
        self._num_computed.setdefault(request.request_id, 0)
        if not self._runner.kv.allocate(request.request_id, request.num_tokens + wanted - 1):
            return None
        params = request.params
        coupled = self._coupled == "all" or (self._coupled == "seeded" and params.seed is not None)
        return _Draft(replace(entry, max_tokens=wanted), point_mass=params.greedy or coupled)

    def _catch_up(self, drafts: Sequence[_Draft]) -> list[Tensor]:
        """Feed every committed token not computed yet, in passes of bounded size; logits after the last of each."""
        last: dict[str, Tensor] = {}
        pending = [draft.entry.request for draft in drafts]
        while pending:
            budget, chunks = self._max_num_batched_tokens, []
            for request in pending:
                start = self._num_computed[request.request_id]
                stop = min(request.num_tokens, start + budget)
                if stop > start:
                    chunks.append(Chunk(request.request_id, request.token_ids[start:stop], start, num_logits=1))
                    budget -= stop - start
            for chunk, logits in zip(chunks, self._runner.forward(chunks), strict=True):
                self._num_computed[chunk.request_id] = chunk.start + len(chunk.token_ids)
                last[chunk.request_id] = logits
            pending = [r for r in pending if self._num_computed[r.request_id] < r.num_tokens]
        return [last[draft.entry.request.request_id] for draft in drafts]

    def _next_chunk(self, draft: _Draft) -> Chunk:
        request = draft.entry.request
        place = request.num_tokens + len(draft.token_ids) - 1
        return Chunk(request.request_id, draft.token_ids[-1:], place, num_logits=1)

    def _extend(self, draft: _Draft, logits: Tensor) -> None:
        """Draw one more token from ``logits`` [1, draft vocab]."""
        request, noise = draft.entry.request, draft.entry.noise
        row = logits[:, : len(self._token_ids)]
        if request.params.greedy and not draft.entry.law.edits:
            draft.token_ids.append(int(self._token_ids[int(max_and_argmax(row)[1])]))
            return
        scores = as_array(row[0])
        if draft.entry.law.edits:
            edited = self._edited(draft, scores)
            # Settled before anything is drawn here, so that ending the proposal does not depend on what would be drawn.
            draft.stuck = bool(np.isneginf(edited).all())
            if draft.stuck:
                return
            if request.params.greedy:
                draft.token_ids.append(greedy_token(edited))
                return
            probs = law(edited, request.params)
        else:
            probs = np.zeros(self._vocab_size, dtype=np.float64)
            probs[self._token_ids] = law(scores, request.params)
        position = request.num_tokens + len(draft.token_ids)
        purpose = Purpose.TARGET if draft.point_mass else Purpose.DRAFT
        draft.token_ids.append(noise.draw(probs, position, purpose))
        if not draft.point_mass:
            draft.probs.append(probs)

    def _edited(self, draft: _Draft, scores: Weights) -> Weights:
        """Logits [target vocab] at this place, as the request edits them; tokens unknown to the draft are out."""
        logits = np.full(self._vocab_size, -np.inf)
        logits[self._token_ids] = scores
        return draft.entry.law.edited(logits, draft.entry.request.token_ids, draft.token_ids)
