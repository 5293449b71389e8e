"""Admit requests, grant tokens for each step, preempt, commit. Handles no tensors and no text.

There is no separate prefill phase. In every step ``num_computed_tokens`` of each request advances towards
``num_tokens``. A request with one uncomputed token decodes: the step computes that token and its drafts.
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
"""The record of a request: ``Request`` or a subclass of the engine."""


@dataclass(frozen=True)
class Grant(Generic[R]):
    """The tokens that one request computes in this step. Their slots are allocated.

    The step computes the committed tokens [num_computed_tokens, num_computed_tokens + num_tokens). If that includes the
    last committed token, ``scores`` is True: the step verifies up to ``max_drafts`` drafts and commits at least one new
    token.
    """

    request: R
    num_tokens: int
    max_drafts: int
    scores: bool

    @property
    def decodes(self) -> bool:
        """True if the step computes the last committed token only; then it is a decode step of the request."""
        return self.scores and self.num_tokens == 1


AGING_STEPS = 256
"""One level of priority equals this many steps of arrival time. Requests that arrive later cannot overtake."""

_PROMPTS_OVER_DRAFTS = 4
"""In a pass with prompts, drafts get at most 1 / 4 of the token budget."""


def _urgency(request: Request) -> tuple[int, int]:
    return request.urgency


class Scheduler(Generic[R]):
    """Schedules requests of equal priority in order of arrival.

    A request's urgency is fixed when it arrives: the current step number plus ``AGING_STEPS`` per priority level. Lower
    is more urgent. So a request of higher priority overtakes earlier ones, but no request waits forever.

    When blocks run out, the drafts of a request shrink first. Then the least urgent running request is preempted; among
    equals, the one that arrived last.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        draft_budget: Callable[[R], int],
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        """``draft_budget(request)`` is the largest number of lookahead slots to reserve for its next step.

        ``max_num_seqs`` bounds the running requests and ``max_num_batched_tokens`` the tokens of one step, drafts
        included.
        """
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
        """Requests that hold no blocks, most urgent first."""
        return self._waiting

    @property
    def has_requests(self) -> bool:
        """True while a request waits or runs."""
        return bool(self._waiting or self._running)

    def add(self, request: R) -> None:
        """Queue a new request and set its ``urgency``."""
        request.urgency = (self._num_steps + request.priority * AGING_STEPS, request.arrival)
        insort(self._waiting, request, key=_urgency)

    def schedule(self) -> list[Grant[R]]:
        """Grant tokens for one step, most urgent request first. Returns at least one grant if there is a request."""
        self._num_steps += 1
        grants: list[Grant[R]] = []
        budget = self._max_num_batched_tokens
        self._make_way(budget)
        num_preempted = len(self._preempted)
        # One token is reserved for every running request, so that drafts or a long prompt cannot use up the budget.
        reserved = len(self._running)
        self._most_drafts = self._drafts_beside_prompts(budget)
        for request in list(self._running):
            reserved -= 1
            if request.status is not Status.RUNNING:
                continue  # an earlier iteration of this loop preempted it
            grant = self._grant(request, budget - reserved, may_preempt=True)
            if grant is not None:
                grants.append(grant)
                budget -= grant.num_tokens + grant.max_drafts
        if len(self._preempted) == num_preempted:
            self._admit(grants, budget)
        return grants

    def take_preempted(self) -> list[R]:
        """The requests preempted since the last call. The caller must make drafters forget them."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def commit(
        self,
        grant: Grant[R],
        tokens: Sequence[tuple[int, TokenSource]],
    ) -> int:
        """Append the emitted ``tokens`` up to the first end of the request; return the number appended.

        The block table is truncated to the K/V of committed tokens. The last committed token has no K/V yet. A finished
        request is removed and its blocks are freed.
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
        # Publish after truncation, so that no other request finds blocks with rejected or cut-off tokens.
        self._kv.truncate(request.request_id, request.num_computed_tokens)
        self._kv.publish(request.request_id, request.token_ids, request.num_computed_tokens)
        if request.finished:
            self._drop(request)
        return appended

    def finish(self, request: R, reason: FinishReason, *, error: str | None = None) -> None:
        """End a waiting or running request, for example on abort, and free its blocks."""
        request.finish(reason, error=error)
        self._drop(request)

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless free + cached + owned = total and only running requests own blocks."""
        self._kv.check_integrity(live=(request.request_id for request in self._running))

    def _grant(self, request: R, budget: int, *, may_preempt: bool) -> Grant[R] | None:
        uncomputed = request.num_tokens - request.num_computed_tokens
        num_tokens = min(uncomputed, budget)
        # No drafts before the first output token, even after a prompt of one token: a drafter would delay TTFT.
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
        """The largest number of drafts per request. Beside prompts it is limited, so that drafts do not delay TTFT."""
        num_decoding = sum(request.num_tokens - request.num_computed_tokens == 1 for request in self._running)
        may_admit = self._waiting and len(self._running) < self.max_num_seqs
        if not num_decoding or not (may_admit or num_decoding < len(self._running)):
            return budget
        return max(1, budget // _PROMPTS_OVER_DRAFTS // num_decoding)

    def _num_drafts(self, request: R, budget: int) -> int:
        if request.drafting_stopped or not request.params.speculates:
            return 0
        # A step emits one token more than it accepts drafts, so the last output token needs no draft.
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
        """Start after the tokens whose K/V are in the prefix cache, unless prompt log-probabilities are missing."""
        if len(request.prompt_logprobs) >= len(request.prompt_token_ids) or request.params.prompt_logprobs is None:
            request.num_computed_tokens = self._kv.reuse(request.request_id, request.token_ids)

    def _make_way(self, budget: int) -> None:
        """Preempt the least urgent running request if it blocks the admission of one of higher priority."""
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
