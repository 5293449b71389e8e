"""A smaller model of the same vocabulary drafts, with K/V of its own, and computes what it has not computed yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from outrider import native
from outrider.drafters.base import DrafterDefaults, DraftRequest, Proposal
from outrider.drafters.draft_chain import DraftChain
from outrider.drafters.draft_passes import DraftPasses
from outrider.drafters.draft_rows import DraftRows
from outrider.drafters.draft_tree import DraftTree
from outrider.drafters.text_index import DraftLookUp, TextIndexes
from outrider.request import Request
from outrider.runner.model_runner import ModelRunner
from outrider.verification.registry import Coupling

_LOOK_UP_FLOOR = 0.2
"""Tokens less likely than this are not read on suspicion."""


def is_point_mass(entry: DraftRequest, coupled: Coupling) -> bool:
    """True if the request's drafts are argmaxes, or drawn with the target's own noise."""
    params = entry.request.params
    return params.greedy or coupled == "all" or (coupled == "seeded" and params.seed is not None)


class DraftModelDrafter(DrafterDefaults):
    """Drafts token by token, or trees level by level, all requests of the batch in one pass per token or level.

    Greedy requests get the argmax and ``coupled`` ones the token that the target's own noise would choose under the
    draft's distribution: both are point masses, and the answer does not depend on the draft (arXiv 2408.07978). All
    others get a sample with its distribution.

    A chain's own next tokens are looked up in the request's text, and those that come true cost no pass of their own.

    After a step whose K drafts were all accepted the last draft was never fed, so the draft's cache is one token
    behind; after steps without drafts it is further behind. Both are made good by the next proposal's first pass. Of a
    tree the accepted path's K/V are brought in line and kept as far as it was fed.
    """

    name = "draft_model"

    def __init__(
        self,
        runner: ModelRunner,
        *,
        target_vocab_size: int,
        max_num_batched_tokens: int,
        coupled: Coupling = "seeded",
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
        self._passes = DraftPasses(runner, max_num_batched_tokens)
        self._coupled = coupled
        self._texts = TextIndexes() if native.available() and tree_width == 1 else None

    @property
    def nbytes(self) -> int:
        """Memory of the texts' indexes in bytes."""
        return 0 if self._texts is None else self._texts.nbytes

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """Proposals of ``max_tokens`` tokens; shorter where the draft's context or cache has no more room."""
        proposals = {entry.request.request_id: Proposal() for entry in batch}
        drafts = [draft for entry in batch if (draft := self._begin(entry)) is not None]
        requests = [draft.entry.request for draft in drafts]
        self._passes.grow(drafts, [r.token_ids[self._passes.num_computed(r.request_id) :] for r in requests])
        proposals.update((draft.request_id, draft.proposal()) for draft in drafts)
        return list(proposals.values())

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Keep the K/V of what was accepted and fed; the last draft was never fed."""
        request_id = request.request_id
        computed = self._passes.num_computed(request_id)
        if computed == 0 or num_drafted == 0:
            return
        tree = self._trees.pop(request_id, None)
        if tree is None:
            self._passes.keep(request_id, computed + min(num_accepted, num_drafted - 1))
        else:
            fed = tree.fed_path(request.token_ids[tree.start : tree.start + num_accepted])
            self._passes.keep_path(request_id, tree.start, fed)
        self._passes.publish(request_id, request.token_ids, request.num_tokens)

    def forget(self, request_id: str) -> None:
        """Give the request's blocks back."""
        self._trees.pop(request_id, None)
        if self._texts is not None:
            self._texts.forget(request_id)
        self._passes.free(request_id)

    def num_uncomputed_tokens(self, request: Request) -> int:
        """Committed tokens of the request that have no K/V here yet."""
        return request.num_tokens - self._passes.num_computed(request.request_id)

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless the draft's blocks add up."""
        self._passes.check_integrity()

    def _begin(self, entry: DraftRequest) -> DraftChain | DraftTree | None:
        request = entry.request
        room = self._passes.max_model_len - request.num_tokens
        wanted = min(entry.max_tokens, room + 1)  # the last draft is not fed, so it needs no place
        if wanted < 1:
            return None
        self._passes.begin(request.request_id, request.token_ids)
        in_line = wanted - 1 if self._tree_width == 1 else 0
        if not self._passes.reserve(request.request_id, request.num_tokens + in_line):
            return None
        entry, point_mass = replace(entry, max_tokens=wanted), is_point_mass(entry, self._coupled)
        if self._tree_width == 1:
            look_up = None
            if self._texts is not None and wanted > 2:  # the first token comes with the context, the last is not fed
                look_up = DraftLookUp(self._texts, request, _LOOK_UP_FLOOR)
            return DraftChain(entry, self._rows, point_mass, request.num_tokens, look_up=look_up)
        tree = DraftTree(entry, self._rows, point_mass=point_mass, width=self._tree_width)
        self._trees[request.request_id] = tree
        return tree
