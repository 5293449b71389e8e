"""A smaller model of the same vocabulary drafts, with K/V of its own, and computes what it has not computed yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from torch import Tensor

from outrider.drafters.base import DraftRequest, Proposal
from outrider.drafters.draft_rows import DraftRows
from outrider.drafters.draft_tree import DraftTree
from outrider.request import Request
from outrider.runner.model_runner import Chunk, ModelRunner
from outrider.sampling.noise import Purpose, Weights

Coupled = Literal["none", "seeded", "all"]
"""Which requests get drafts drawn with the target's own noise."""


@dataclass
class _DraftChain:
    """One request's proposal while it grows, token by token."""

    entry: DraftRequest
    rows: DraftRows
    point_mass: bool
    token_ids: list[int] = field(default_factory=list)
    probs: list[Weights] = field(default_factory=list)
    stuck: bool = False
    """Of what the request allows here, the draft knows no token."""

    @property
    def done(self) -> bool:
        return self.stuck or len(self.token_ids) >= self.entry.max_tokens

    def chunk(self) -> Chunk:
        request = self.entry.request
        place = request.num_tokens + len(self.token_ids) - 1
        return Chunk(request.request_id, self.token_ids[-1:], place, num_logits=1)

    def extend(self, logits: Tensor) -> None:
        """One token more from ``logits`` [1, draft vocab]."""
        entry, request = self.entry, self.entry.request
        if request.params.greedy:
            token_id = self.rows.greedy(entry, logits[0], self.token_ids)
            self.stuck = token_id is None
            if token_id is not None:
                self.token_ids.append(token_id)
            return
        probs = self.rows.law(entry, logits[0], self.token_ids)
        # Settled before anything is drawn here, so that ending the proposal does not depend on what would be drawn.
        self.stuck = probs is None
        if probs is None:
            return
        position = request.num_tokens + len(self.token_ids)
        purpose = Purpose.TARGET if self.point_mass else Purpose.DRAFT
        self.token_ids.append(entry.noise.draw(probs, position, purpose))
        if not self.point_mass:
            self.probs.append(probs)

    def proposal(self) -> Proposal:
        return Proposal(tuple(self.token_ids), None if self.point_mass else tuple(self.probs))


class DraftModelDrafter:
    """Drafts token by token, or trees level by level, all requests of the batch in one pass per token or level.

    Greedy requests get the argmax and ``coupled`` ones the token that the target's own noise would choose under the
    draft's law: both are point masses, and the answer does not depend on the draft (arXiv 2408.07978). All others get a
    sample with its law.

    ``num_computed`` of a request counts the committed tokens that have K/V here. After a step whose K drafts were all
    accepted the last draft was never fed, so the cache is one token behind; after steps without drafts it is further
    behind. Both are made good by the next proposal's first pass. Of a tree the accepted path's K/V are brought in line
    and kept as far as it was fed.
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
        tree_width: int = 1,
    ) -> None:
        """``token_ids`` are the tokens that the rows of a trimmed output stand for; without, row i is token i.

        ``tree_width`` is the most children of a node, and the most nodes expanded in a level; 1 makes chains.
        """
        known = min(runner.model.vocab_size, target_vocab_size)  # a draft may be padded further than the target
        kept = np.arange(known) if token_ids is None else np.asarray(token_ids, dtype=np.int64)
        self._rows = DraftRows(kept, target_vocab_size)
        self._tree_width = tree_width
        self._trees: dict[str, DraftTree] = {}
        self._runner = runner
        self._max_num_batched_tokens = max_num_batched_tokens
        self._coupled = coupled
        self._num_computed: dict[str, int] = {}

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """Proposals of ``max_tokens`` tokens; shorter where the draft's context or cache has no more room."""
        proposals = {entry.request.request_id: Proposal() for entry in batch}
        drafts = [draft for entry in batch if (draft := self._begin(entry)) is not None]
        growing = drafts
        for draft, logits in zip(drafts, self._catch_up(drafts), strict=True):
            draft.extend(logits)
        while growing := [draft for draft in growing if not draft.done and self._has_room(draft)]:
            chunks = [draft.chunk() for draft in growing]
            for draft, logits in zip(growing, self._runner.forward(chunks), strict=True):
                draft.extend(logits)
        proposals.update((draft.entry.request.request_id, draft.proposal()) for draft in drafts)
        return list(proposals.values())

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Keep the K/V of what was accepted and fed; the last draft was never fed."""
        computed = self._num_computed.get(request.request_id)
        if computed is None or num_drafted == 0:
            return
        tree = self._trees.pop(request.request_id, None)
        if tree is None:
            computed += min(num_accepted, num_drafted - 1)
        else:
            fed = tree.fed_path(request.token_ids[tree.start : tree.start + num_accepted])
            self._runner.keep_path(request.request_id, tree.start, fed)
            computed += len(fed)
        self._num_computed[request.request_id] = computed
        self._runner.kv.truncate(request.request_id, computed)
        self._runner.kv.publish(request.request_id, request.token_ids, computed)

    def forget(self, request_id: str) -> None:
        """Give the request's blocks back."""
        self._num_computed.pop(request_id, None)
        self._trees.pop(request_id, None)
        self._runner.kv.free(request_id)

    def num_behind(self, request: Request) -> int:
        """Committed tokens of the request that have no K/V here yet."""
        return request.num_tokens - self._num_computed.get(request.request_id, 0)

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless the draft's blocks add up."""
        self._runner.kv.check_integrity(live=self._num_computed)

    def _begin(self, entry: DraftRequest) -> _DraftChain | DraftTree | None:
        request = entry.request
        room = self._runner.model.max_model_len - request.num_tokens
        wanted = min(entry.max_tokens, room + 1)  # the last draft is not fed, so it needs no place
        if wanted < 1:
            return None
        if request.request_id not in self._num_computed:
            self._num_computed[request.request_id] = self._runner.kv.reuse(request.request_id, request.token_ids)
        in_line = wanted - 1 if self._tree_width == 1 else 0
        if not self._runner.kv.allocate(request.request_id, request.num_tokens + in_line):
            return None
        params = request.params
        coupled = self._coupled == "all" or (self._coupled == "seeded" and params.seed is not None)
        entry, point_mass = replace(entry, max_tokens=wanted), params.greedy or coupled
        if self._tree_width == 1:
            return _DraftChain(entry, self._rows, point_mass)
        tree = DraftTree(entry, self._rows, point_mass=point_mass, width=self._tree_width)
        self._trees[request.request_id] = tree
        return tree

    def _has_room(self, draft: _DraftChain | DraftTree) -> bool:
        """A chain's places were taken at once; a tree takes them level by level, and ends where there are no more."""
        if isinstance(draft, _DraftChain) or self._runner.kv.allocate(draft.entry.request.request_id, draft.num_places):
            return True
        draft.stop()
        return False

    def _catch_up(self, drafts: Sequence[_DraftChain | DraftTree]) -> list[Tensor]:
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
