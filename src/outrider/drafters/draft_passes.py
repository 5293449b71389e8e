"""Runs a draft model for drafts that grow: K/V of its own, brought up to date in one go, then a pass for each level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.models.logits import Logits
from outrider.runner.model_runner import Chunk, ModelRunner


class GrowingDraft(Protocol):
    """One request's draft while it grows."""

    @property
    def request_id(self) -> str:
        """Whose draft it is."""
        ...

    @property
    def done(self) -> bool:
        """Nothing more is to be fed."""
        ...

    @property
    def num_places(self) -> int:
        """Places that the draft's cache needs for what is fed next, and all before it."""
        ...

    def chunk(self) -> Chunk:
        """What is fed next."""
        ...

    def extend(self, logits: Logits) -> None:
        """Grow by ``logits`` [rows of the chunk, draft vocab]; the first come after the context, [1, draft vocab]."""
        ...

    def shrink(self) -> None:
        """The cache has no room: feed less, or grow no further and be done."""
        ...


class DraftPasses:
    """A draft model's passes and its cache.

    ``num_computed`` of a request counts the tokens of its context that have K/V here. What was fed of drafts lies
    behind and does not count until ``keep`` says so.
    """

    def __init__(self, runner: ModelRunner, max_num_batched_tokens: int) -> None:
        self._runner = runner
        self._max_num_batched_tokens = max_num_batched_tokens
        self._num_computed: dict[str, int] = {}

    @property
    def max_model_len(self) -> int:
        """The most tokens that the draft model can read."""
        return self._runner.model.max_model_len

    def num_computed(self, request_id: str) -> int:
        """Tokens of the request's context that need not be fed again."""
        return self._num_computed.get(request_id, 0)

    def begin(self, request_id: str, token_ids: Sequence[int]) -> int:
        """Tokens at the beginning of ``token_ids`` that are computed; for a request that is new, by others before."""
        if request_id not in self._num_computed:
            self._num_computed[request_id] = self._runner.kv.reuse(request_id, token_ids)
        return self._num_computed[request_id]

    def reserve(self, request_id: str, num_places: int) -> bool:
        """Have room for so many tokens; False if there is none."""
        return self._runner.kv.allocate(request_id, num_places)

    def keep(self, request_id: str, num_tokens: int) -> None:
        """Only the first ``num_tokens`` that were fed are the context's; the places of others are given back."""
        self._num_computed[request_id] = num_tokens
        self._runner.kv.truncate(request_id, num_tokens)

    def keep_path(self, request_id: str, start: int, nodes: Sequence[int]) -> None:
        """Bring a tree's path in line, as ``ModelRunner.keep_path`` does, and keep it."""
        self._runner.keep_path(request_id, start, nodes)
        self.keep(request_id, start + len(nodes))

    def publish(self, request_id: str, token_ids: Sequence[int], num_settled: int) -> int:
        """Let requests that begin alike share the K/V of ``token_ids[:num_settled]`` as far as computed; how far."""
        settled = min(num_settled, self._num_computed[request_id])
        self._runner.kv.publish(request_id, token_ids, settled)
        return settled

    def free(self, request_id: str) -> None:
        """Give the request's blocks back."""
        self._num_computed.pop(request_id, None)
        self._runner.kv.free(request_id)

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless the draft's blocks add up."""
        self._runner.kv.check_integrity(live=self._num_computed)

    def grow(self, drafts: Sequence[GrowingDraft], missing: Sequence[Sequence[int]]) -> None:
        """Feed each draft's ``missing`` tokens, all of its context not computed yet, and grow it until it is done."""
        for draft, logits in zip(drafts, self._catch_up(drafts, missing), strict=True):
            draft.extend(logits)
        growing = list(drafts)
        while growing := [draft for draft in growing if not draft.done and self._has_room(draft)]:
            chunks = [draft.chunk() for draft in growing]
            for draft, logits in zip(growing, self._runner.forward(chunks).logits, strict=True):
                draft.extend(logits)

    def _has_room(self, draft: GrowingDraft) -> bool:
        while not self._runner.kv.allocate(draft.request_id, draft.num_places):
            draft.shrink()
            if draft.done:
                return False
        return True

    def _catch_up(self, drafts: Sequence[GrowingDraft], missing: Sequence[Sequence[int]]) -> list[Logits]:
        """Feed every missing token, in passes of bounded size; logits after the last of each."""
        last: dict[str, Logits] = {}
        pending = {draft.request_id: tokens for draft, tokens in zip(drafts, missing, strict=True)}
        while pending:
            budget, chunks = self._max_num_batched_tokens, []
            for request_id, tokens in pending.items():
                if budget > 0:
                    part = tokens[:budget]
                    chunks.append(Chunk(request_id, part, self._num_computed[request_id], num_logits=1))
                    budget -= len(part)
            for chunk, logits in zip(chunks, self._runner.forward(chunks).logits, strict=True):
                self._num_computed[chunk.request_id] += len(chunk.token_ids)
                pending[chunk.request_id] = pending[chunk.request_id][len(chunk.token_ids) :]
                last[chunk.request_id] = logits
            pending = {request_id: tokens for request_id, tokens in pending.items() if tokens}
        return [last[draft.request_id] for draft in drafts]
