"""Speculation by measured costs: for each request and step as many drafts as pay, and none where none do.

The files of this folder divide the work. ``allocation`` has the mathematics, ``acceptance`` the estimates of what is
accepted, ``costs`` the times, ``ledger`` the time that trying a model may lose. This file joins them to a policy.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from outrider.request import Request
from outrider.speculation.acceptance import AcceptanceProbs
from outrider.speculation.allocation import Allocation, RowPrices, allocate
from outrider.speculation.costs import OVERHEAD_RATE, DraftCosts, PassCosts, PassLoad, RowCosts
from outrider.speculation.ledger import ExplorationBudget, ProbeSchedule
from outrider.speculation.policy import NOT_WORTH_IT, NOTHING_FOUND, Choice, Draftable, Plan, StepOutlook
from outrider.speculation.report import StepReport

_START_MARGIN, _CONTINUE_MARGIN = 0.04, 0.02
"""Speculation starts where its predicted gain for each token is above the first, and continues above the second."""
_KNOWN_OUTCOMES = 16
"""Before this many of its drafts are verified a model drafts for one request at a time."""
_PROBE_TOKENS = 3
_PREFILL_SPREAD_TOKENS = 64
"""The draft model's prefill of a request is charged to at most this many later tokens of it."""
_SHORT_TEXT = 16
"""Up to this many tokens, computing a request's text is no prefill that must pay off first."""
_MANY_REQUESTS = 4
"""From this many decoding requests on, look-ups without result are made less often."""
_FEWER_LOOK_UPS_AFTER = 8
_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 11, 15, 22, 31, 45, 63)


@dataclass
class ModelDrafting:
    """The one drafter whose drafts cost time: its name, its costs, the most tokens that it drafts in a round.

    ``tree`` is set where its tokens are nodes of a tree, of which the accepted ones lie anywhere.
    """

    name: str
    costs: DraftCosts
    max_tokens: int
    tree: bool = False


@dataclass(frozen=True)
class _Step:
    """The step that was planned last, without drafts; ``outside_seconds`` are those outside its pass."""

    load: PassLoad
    num_decoding: int
    num_requests: int
    outside_seconds: float


class AdaptivePolicy:
    """Chooses drafter and K for each request and step; ``num_speculative_tokens`` is the upper limit of K."""

    def __init__(self, passes: PassCosts, *, num_speculative_tokens: int, model: ModelDrafting | None = None) -> None:
        self.passes = passes
        self.model = model
        self.exploration = ExplorationBudget()
        self._max_tokens = num_speculative_tokens
        self._probes = ProbeSchedule()
        self._row_costs = {True: RowCosts(), False: RowCosts()}
        """Seconds after the pass for greedy requests, and for sampled ones."""
        self._overhead = 0.0
        """Decayed mean of the seconds of a step outside pass, drafting with the model, and rows."""
        self._num_steps = 0
        self._num_outcomes = 0
        self._drafting = self._modelling = False
        """Whether the last plan drafted, and whether it let the model draft by choice."""
        self._step = _Step(PassLoad(), 0, 0, 0.0)
        self._plain: float | None = None
        self._allocation: Allocation | None = None

    def budget(self, request: Request, steps_without_drafts: int) -> int:
        """The upper limit of K; how much of it is used is decided in ``plan``, when the look-ups are made.

        With many requests (in the last step), looking for drafts and weighing them takes noticeable time. Where it led
        to nothing for 8 steps it is done in every second step, after 32 steps in every fourth.
        """
        if self.model is None and self._step.num_decoding >= _MANY_REQUESTS:
            long, longer = _FEWER_LOOK_UPS_AFTER, 4 * _FEWER_LOOK_UPS_AFTER
            every = 1 + (steps_without_drafts >= long) + 2 * (steps_without_drafts >= longer)
            if self._num_steps % every:
                return 0
        return self._max_tokens

    def plan(self, step: StepOutlook, drafts: Sequence[Draftable]) -> Plan:
        """The drafts whose expected tokens are worth their time."""
        self._num_steps += 1
        rows = sum(self._row_costs[request.params.greedy].first for request in step.decoding)
        self._step = _Step(step.load, len(step.decoding), step.num_requests, self._overhead + rows)
        self._plain = self.passes.seconds(step.load) + self._step.outside_seconds if step.decoding else None
        self._allocation = None
        return Plan(self._choices(drafts, self._plain), self._plain)

    def learn(self, report: StepReport) -> None:
        """Update all costs, and the exploration budget."""
        for outcome in report.outcomes:
            self._row_costs[outcome.request.params.greedy].observe(outcome.num_rows, outcome.seconds)
            note, length = outcome.proposal.note, len(outcome.proposal)
            if self.model is not None and length and note is not None and note.drafter == self.model.name:
                self._num_outcomes += 1
                if outcome.num_accepted == length:
                    self._probes.succeeded()
        planned = self._allocation
        if self.model is not None and planned is not None and report.model_seconds:
            self.model.costs.observe(planned.draft_seconds, report.model_seconds)
        outside = report.seconds - report.forward_seconds - report.model_seconds - report.row_seconds
        self._overhead += (OVERHEAD_RATE if self._overhead else 1.0) * (max(outside, 0.0) - self._overhead)
        self.passes.observe(report.load, report.forward_seconds)
        self._probes.count_step(modelled=self._modelling)
        gained = report.num_gained_decoding
        if self._plain is None or not gained:
            return
        saved = prefill = 0.0
        if planned is not None and any(planned.by_model):
            prefill = planned.prefill_seconds
            saved = gained / self._step.num_decoding * self._plain - report.seconds + prefill
        self.exploration.settle(self._plain, report.seconds, saved, prefill)

    def _choices(self, asked: Sequence[Draftable], plain: float | None) -> list[Choice]:
        drafts = asked
        if self.model is not None and plain is not None:
            if self._num_outcomes < _KNOWN_OUTCOMES:
                drafts = _one_modelled(drafts)
            drafts = [d if self._may_prefill(d, plain) else replace(d, modelled=()) for d in drafts]
        if plain is None or not any(len(d.retrieved) or len(d.modelled) for d in drafts):
            return [Choice(why=_why_not(draft)) for draft in asked]
        most = sum(max(len(d.retrieved), len(d.modelled)) for d in drafts)
        prices = RowPrices(
            [self._step.outside_seconds + seconds for seconds in self.passes.with_more_rows(self._step.load, most)],
            [self._row_costs[draft.request.params.greedy].further for draft in drafts],
            self._step.num_requests,
        )
        best = allocate([d.retrieved for d in drafts], [False] * len(drafts), prices)
        if best.gain < _margin(best, continuing=self._drafting):
            best = Allocation.none(len(drafts))
        modelled = self._with_model(drafts, prices)
        if modelled is not None:
            gain = modelled.gain - best.gain
            pays = any(modelled.by_model) and gain >= _margin(modelled, continuing=self._modelling)
            self._modelling = pays and self.exploration.allows(0.0)
            if self._modelling:
                best = modelled
                self._probes.succeeded()
            else:
                best = self._probe(drafts, best, prices)
        self._drafting = any(best.counts)
        self._allocation = best
        return [
            Choice(count, by_model, expected, "" if count else _why_not(draft))
            for draft, count, by_model, expected in zip(asked, best.counts, best.by_model, best.expected, strict=True)
        ]

    def _may_prefill(self, draft: Draftable, plain: float) -> bool:
        """Whether the model may compute the text of a request to draft from it.

        It waits until decoding has lasted half as long as that prefill would. By then it is known whether retrieval
        does as well, and that the request does not end at once. It also waits while earlier prefills have not paid.
        """
        if self.model is None or not draft.modelled or draft.uncomputed_tokens <= _SHORT_TEXT:
            return True
        prefill = self.model.costs.seconds(1, 1, draft.uncomputed_tokens) - self.model.costs.seconds(1, 1, 1)
        decoded_seconds = draft.request.num_output_tokens * plain
        return decoded_seconds >= 0.5 * prefill and self.exploration.allows_prefill(plain)

    def _with_model(
        self, drafts: Sequence[Draftable], prices: RowPrices, *, optimistic: bool = False
    ) -> Allocation | None:
        """The best allocation in which the model drafts for every request of which it promises more than was looked up.

        None without a model that may draft. An ``optimistic`` one takes half of the known probability of rejection.
        """
        model = self.model
        lengths = [min(d.max_tokens, len(d.modelled)) for d in drafts]
        deepest = max(lengths, default=0)
        if model is None or not deepest:
            return None
        probs = [
            self._model_probs(d.modelled[:length], optimistic=optimistic)
            for d, length in zip(drafts, lengths, strict=True)
        ]
        best = Allocation.none(len(drafts))
        for depth in [deepest] if model.tree else [*(each for each in _DEPTHS if each < deepest), deepest]:
            by_model = [
                bool(n) and sum(p[:depth]) > sum(d.retrieved) for d, p, n in zip(drafts, probs, lengths, strict=True)
            ]
            if not any(by_model):
                continue
            rows = list(zip(drafts, probs, by_model, strict=True))
            offers = [p[:depth] if chosen else d.retrieved for d, p, chosen in rows]
            charged, _ = self._draft_seconds([(d, depth) for d, _, chosen in rows if chosen])
            found = allocate(offers, by_model, prices, charged)
            if found.gain > best.gain:
                best = found
        charged, best.draft_seconds = self._draft_seconds(_modelled(drafts, best))
        best.prefill_seconds = max(best.draft_seconds - charged, 0.0)
        return best

    def _model_probs(self, probs: AcceptanceProbs, *, optimistic: bool = False) -> AcceptanceProbs:
        if optimistic:
            rates = (later / one if one else 0.0 for one, later in zip((1.0, *probs), probs, strict=False))
            probs = list(accumulate((0.5 + 0.5 * rate for rate in rates), operator.mul))
        tree = self.model is not None and self.model.tree
        return [sum(probs) / len(probs)] * len(probs) if tree and len(probs) else probs

    def _draft_seconds(self, chosen: Sequence[tuple[Draftable, int]]) -> tuple[float, float]:
        """Seconds to charge to this step for the model's drafts, and seconds that they take now.

        They differ where the model has text to compute first, which is spread over later steps.
        """
        if self.model is None or not chosen:
            return 0.0, 0.0
        depth = max(count for _, count in chosen)
        context = sum(d.request.num_tokens for d, _ in chosen)
        uncomputed = sum(max(d.uncomputed_tokens - 1, 0) for d, _ in chosen)
        now = self.model.costs.seconds(len(chosen), depth, uncomputed, context)
        caught_up = self.model.costs.seconds(len(chosen), depth, min(uncomputed, len(chosen)), context)
        remaining = min(_PREFILL_SPREAD_TOKENS, *(d.request.num_remaining_tokens for d, _ in chosen))
        return caught_up + max(now - caught_up, 0.0) / max(1, remaining // (1 + depth)), now

    def _probe(self, drafts: Sequence[Draftable], best: Allocation, prices: RowPrices) -> Allocation:
        """Let the model draft for one request now and then although it did not pay, since that can change.

        No probe is made where it would not pay even with half of the known probability of rejection.
        """
        if self.model is None or not self._probes.due:
            return best
        hoped = self._with_model(drafts, prices, optimistic=True)
        if hoped is None or not any(hoped.by_model) or hoped.gain - best.gain < _margin(hoped, continuing=False):
            self._probes.postpone()
            return best
        places = [i for i, d in enumerate(drafts) if d.modelled and not best.counts[i] and d.max_tokens]
        if not places:
            return best
        place = min(places, key=lambda i: drafts[i].uncomputed_tokens)
        length = min(_PROBE_TOKENS, drafts[place].max_tokens, len(drafts[place].modelled))
        probe = Allocation(list(best.counts), list(best.by_model), list(best.expected))
        probe.counts[place], probe.by_model[place] = length, True
        probe.expected[place] = sum(self._model_probs(drafts[place].modelled[:length]))
        _, probe.draft_seconds = self._draft_seconds(_modelled(drafts, probe))
        total = sum(probe.counts)
        extra_rows = prices.step_seconds[total] - prices.step_seconds[total - length]
        if not self.exploration.allows(probe.draft_seconds + extra_rows):
            return best
        self._probes.probed()
        return probe


def _one_modelled(drafts: Sequence[Draftable]) -> Sequence[Draftable]:
    """The model may draft only for the request of which it has least to compute."""
    places = [i for i, d in enumerate(drafts) if d.modelled]
    if not places:
        return drafts
    chosen = min(places, key=lambda i: drafts[i].uncomputed_tokens)
    return [d if i == chosen or not d.modelled else replace(d, modelled=()) for i, d in enumerate(drafts)]


def _modelled(drafts: Sequence[Draftable], allocation: Allocation) -> list[tuple[Draftable, int]]:
    """The requests for which the model drafts, and how many tokens."""
    rows = zip(drafts, allocation.counts, allocation.by_model, strict=True)
    return [(draft, count) for draft, count, by_model in rows if by_model]


def _margin(allocation: Allocation, *, continuing: bool) -> float:
    return (_CONTINUE_MARGIN if continuing else _START_MARGIN) * allocation.num_drafting


def _why_not(draft: Draftable) -> str:
    return NOT_WORTH_IT if len(draft.retrieved) or len(draft.modelled) else NOTHING_FOUND
