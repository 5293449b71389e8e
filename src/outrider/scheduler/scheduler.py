"""Who computes what in the next step: admit, grant tokens, preempt, commit. Touches no tensors and no text.

There is no prefill phase: ``num_computed_tokens`` of each request catches up with ``num_tokens``, and a request
that is one token behind decodes, with drafts beside that token.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from outrider.kv_cache.manager import KVCacheManager
from outrider.outputs import FinishReason, TokenSource
from outrider.request import Request, Status

R = TypeVar("R", bound=Request)
"""The record of a request: ``Request``, or what the engine adds to it."""


@dataclass(frozen=True)
class Grant(Generic[R]):
    """What one request may do in this step; the slots for all of it are allocated.

    ``num_tokens`` committed tokens are computed, from ``num_computed_tokens`` on. If they reach the last one,
    ``scores`` is true, up to ``max_drafts`` tokens may follow, and the step commits at least one new token.
    """

    request: R
    num_tokens: int
    max_drafts: int
    scores: bool

    @property
    def decodes(self) -> bool:
        """True if only the last committed token is computed, so that the step is a decode step of the request."""
        return self.scores and self.num_tokens == 1


AGING_STEPS = 256
"""One level of priority equals this many steps of arrival time. Requests that arrive later cannot overtake."""

_PROMPTS_OVER_DRAFTS = 4
"""Beside prompts at most one of this many rows of a pass is for drafts."""


def _urgency(request: Request) -> tuple[int, int]:
    return request.urgency


class Scheduler(Generic[R]):
    """First come, first served among requests of one priority; on shortage of blocks drafts shrink first.

    Then the least urgent request is preempted, which among equals is the youngest. A request's urgency is settled when
    it comes: the number of its step plus ``AGING_STEPS`` for each level of priority. So an urgent one overtakes, but
    however many of those come, each request's turn does too.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        draft_budget: Callable[[R], int],
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        """``draft_budget`` gives the most tokens to reserve for a request's drafts in its next step."""
        self._kv = kv
        self._draft_budget = draft_budget
        self.max_num_seqs = min(max_num_seqs, max_num_batched_tokens)
        self._max_num_batched_tokens = max_num_batched_tokens
        self._waiting: list[R] = []
        self._running: list[R] = []
        self._preempted: list[R] = []
        self._num_steps = 0
        self._most_drafts = 0

    @property
    def running(self) -> Sequence[R]:
        """Requests that hold blocks, most urgent first."""
        return self._running

    @property
    def waiting(self) -> Sequence[R]:
        """Requests that hold none, next first."""
        return self._waiting

    @property
    def has_requests(self) -> bool:
        """True while anyone waits or runs."""
        return bool(self._waiting or self._running)

    def add(self, request: R) -> None:
        """Queue a new request."""
        request.urgency = (self._num_steps + request.priority * AGING_STEPS, request.arrival)
        insort(self._waiting, request, key=_urgency)

    def schedule(self) -> list[Grant[R]]:
        """Grant tokens for one step, most urgent request first; at least one grant if there is any request."""
        self._num_steps += 1
        grants: list[Grant[R]] = []
        budget = self._max_num_batched_tokens
        self._make_way(budget)
        num_preempted = len(self._preempted)
        # Every running request is granted its next token before anyone's drafts or long prompt fill the pass.
        reserved = len(self._running)
        self._most_drafts = self._drafts_beside_prompts(budget)
        for request in list(self._running):
            reserved -= 1
            if request.status is not Status.RUNNING:
                continue  # preempted for a more urgent one in this very loop
            grant = self._grant(request, budget - reserved, may_preempt=True)
            if grant is not None:
                grants.append(grant)
                budget -= grant.num_tokens + grant.max_drafts
        if len(self._preempted) == num_preempted:
            self._admit(grants, budget)
        return grants

    def take_preempted(self) -> list[R]:
        """The requests preempted since the last call; their drafters must forget them."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def commit(
        self,
        grant: Grant[R],
        tokens: Sequence[tuple[int, TokenSource]],
    ) -> int:
        """Append what a step emitted, cut at the first end, roll the cache back; return how many were appended.

        Of the step's K/V those of committed tokens stay; the last committed token has none yet.
        """
        request, appended = grant.request, 0
        request.num_computed_tokens += grant.num_tokens
        for token_id, source in tokens:
            appended += 1
            request.append(token_id, source)
            if request.finished:
                break
        if appended:
            request.num_computed_tokens += appended - 1
        # Only now: what was rejected, or cut off at the end, must never be found.
        self._kv.truncate(request.request_id, request.num_computed_tokens)
        self._kv.publish(request.request_id, request.token_ids, request.num_computed_tokens)
        if request.finished:
            self._drop(request)
        return appended

    def finish(self, request: R, reason: FinishReason, *, error: str | None = None) -> None:
        """End a request from outside, at any phase; its blocks come back at once."""
        request.finish(reason, error=error)
        self._drop(request)

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless blocks add up and only running requests hold any."""
        self._kv.check_integrity(live=(request.request_id for request in self._running))

    def _grant(self, request: R, budget: int, *, may_preempt: bool) -> Grant[R] | None:
        uncomputed = request.num_tokens - request.num_computed_tokens
        num_tokens = min(uncomputed, budget)
        # No drafts beside a prompt, even one of a single token: the first token must not wait for a drafter.
        decoding = uncomputed == 1 and request.num_output_tokens > 0
        drafts = self._num_drafts(request, budget - 1) if decoding else 0
        upto = request.num_computed_tokens + num_tokens
        while not self._kv.allocate(request.request_id, upto + drafts):
            if drafts:
                drafts -= 1
            elif not may_preempt or self._preempt_last() is request:
                return None
        return Grant(request, num_tokens, drafts, scores=num_tokens == uncomputed)

    def _drafts_beside_prompts(self, budget: int) -> int:
        """The most drafts for one request. They are granted before prompts, which must not wait for their sake."""
        num_decoding = sum(request.num_tokens - request.num_computed_tokens == 1 for request in self._running)
        may_admit = self._waiting and len(self._running) < self.max_num_seqs
        if not num_decoding or not (may_admit or num_decoding < len(self._running)):
            return budget
        return max(1, budget // _PROMPTS_OVER_DRAFTS // num_decoding)

    def _num_drafts(self, request: R, budget: int) -> int:
        if request.drafting_stopped or not request.params.speculates:
            return 0
        # A step emits one token more than it accepts drafts, so the last allowed token is never drafted for.
        room = min(budget, self._most_drafts)
        wanted = min(self._draft_budget(request), room, request.num_remaining_tokens - 1)
        cap = request.params.num_speculative_tokens
        return max(0, wanted if cap is None else min(wanted, cap))

    def _admit(self, grants: list[Grant[R]], budget: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self.max_num_seqs:
            request = self._waiting[0]
            self._reuse(request)
            grant = self._grant(request, budget, may_preempt=False)
            if grant is None:
                self._kv.free(request.request_id)
                request.num_computed_tokens = 0
                return
            del self._waiting[0]
            if not request.num_preemptions:
                request.metrics.num_cached_tokens = request.num_computed_tokens
            request.status = Status.RUNNING
            insort(self._running, request, key=_urgency)
            grants.append(grant)
            budget -= grant.num_tokens + grant.max_drafts

    def _reuse(self, request: R) -> None:
        """Begin after the tokens whose K/V are there already; not where every prompt token must be scored."""
        if len(request.prompt_logprobs) >= len(request.prompt_token_ids) or request.params.prompt_logprobs is None:
            request.num_computed_tokens = self._kv.reuse(request.request_id, request.token_ids)

    def _make_way(self, budget: int) -> None:
        """Preempt the least urgent running request if one of higher priority could not be admitted for its sake."""
        if not self._waiting or not self._running:
            return
        first, last = self._waiting[0], self._running[-1]
        if first.priority < last.priority and first.urgency < last.urgency:
            has_seat = len(self._running) < self.max_num_seqs
            if not has_seat or not self._kv.can_allocate(first.request_id, min(first.num_tokens, budget)):
                self._preempt(last)

    def _preempt_last(self) -> R:
        victim = self._running[-1]
        self._preempt(victim)
        return victim

    def _preempt(self, victim: R) -> None:
        self._running.remove(victim)
        self._kv.free(victim.request_id)
        victim.status = Status.WAITING
        victim.num_computed_tokens = 0
        victim.metrics.num_preemptions += 1
        insort(self._waiting, victim, key=_urgency)
        self._preempted.append(victim)

    def _drop(self, request: R) -> None:
        if request in self._running:
            self._running.remove(request)
        elif request in self._waiting:
            self._waiting.remove(request)
        self._kv.free(request.request_id)
