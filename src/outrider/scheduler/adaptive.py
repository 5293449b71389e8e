"""Speculation from measured costs: as many drafts as pay, for each request and step, and none where none do.

Let R requests take part in a step that takes C(n) seconds with n rows of drafts beside the requests' own. With E_r
drafts of request r expected to be accepted, r advances by 1 + E_r tokens in C(n) seconds. Of all allotments, that one
is taken which maximises

    sum over r of log(1 + E_r)  -  R log(C(n) / C(0)),

the sum of the logarithms of all requests' speeds relative to K = 0 (proportional fairness, Kelly et al. 1998). For
one request, or alike ones, that is the most tokens per second; where requests differ, nobody's draft rows may slow the
others by more than they gain. Nothing taken, K = 0, is always a candidate, worth 0. No tensors and no clock here: the
engine tells times.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from outrider.request import Request
from outrider.scheduler.costs import SLOW, DraftCosts, Load, PassCosts, RowCosts
from outrider.scheduler.speculation import (
    NOT_WORTH_IT,
    NOTHING_FOUND,
    RESTING,
    Choice,
    Draftable,
    SpeculationController,
)
from outrider.scheduler.survival import Survival, SurvivalEstimates

PRIORS = {"prediction": 0.8, "ngram": 0.5}
"""Chance of a token to be accepted after those before it, before anything is known of the drafter."""
_PRIOR = 0.7
_BEGIN_MARGIN, _KEEP_MARGIN = 0.04, 0.02
"""Speculation begins where it promises so much more per token than K = 0, and goes on while it promises less."""
EXPLORATION_SHARE = 0.02
"""Of the elapsed time, what drafting with a model may lose in all, by the times observed, before it is held back."""
_CREDIT_STEPS = 3
"""The most that it may lose at once, in steps of plain decoding; also what it may lose at the start."""
_LEARNT = 16
"""Until its drafts have been judged so often a model drafts for one request at a time, and reads only its text."""
_PROBE_TOKENS = 3
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 1024
"""Steps from one probe of a drafter that does not pay to the next; doubled each time."""
_AMORTISE_TOKENS = 64
"""A model that has a request's text yet to compute is thought to draft for so many more tokens of it."""
_CROWD = 4
"""Requests from which on looking for drafts is worth saving."""
_FRUITLESS = 8
_UNREAD = 16
"""Tokens from which on a text is one that the model has not read."""
_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 11, 15, 22, 31, 45, 63)


@dataclass
class ModelDrafting:
    """The one drafter whose drafts cost time: its name, what it costs, the most tokens it drafts in a round.

    ``tree`` is set where its tokens are nodes of a tree, of which the accepted ones may lie anywhere.
    """

    name: str
    costs: DraftCosts
    max_tokens: int
    tree: bool = False


@dataclass
class _Step:
    """What is known when a step begins."""

    load: Load
    num_decoding: int
    num_requests: int
    beside_seconds: float
    """What a step takes beside its pass, without drafts."""


def _loss(slot: tuple[float, int, float]) -> float:
    return slot[0]


@dataclass
class _Plan:
    """Counts per request, the tokens that they promise, and what that is worth: see the top of this file."""

    counts: list[int]
    by_model: list[bool]
    expected: list[float]
    worth: float = 0.0
    draft_seconds: float = 0.0
    invested: float = 0.0
    """Of these, what is for text that the model reads now and is to draft from later on."""


def _none(drafts: Sequence[Draftable]) -> _Plan:
    return _Plan([0] * len(drafts), [False] * len(drafts), [0.0] * len(drafts))


def _one_modelled(drafts: Sequence[Draftable]) -> Sequence[Draftable]:
    """The model may draft only for the request of which it has least to read."""
    first = min((d.behind for d in drafts if d.behind is not None), default=None)
    chosen = next((d for d in drafts if d.behind is not None and d.behind == first), None)
    return [d if d is chosen or d.behind is None else replace(d, behind=None) for d in drafts]


def _modelled(drafts: Sequence[Draftable], plan: _Plan) -> list[tuple[Draftable, int]]:
    """The requests for which the model drafts, and how many tokens."""
    return [(d, n) for d, n, by_model in zip(drafts, plan.counts, plan.by_model, strict=True) if by_model]


class AdaptiveSpeculation(SpeculationController):
    """Chooses drafter and K per request and step; ``num_speculative_tokens`` is a cap."""

    def __init__(self, passes: PassCosts, *, num_speculative_tokens: int, model: ModelDrafting | None = None) -> None:
        self.passes = passes
        self.model = model
        self._cap = num_speculative_tokens
        self._estimates: dict[str, SurvivalEstimates] = {}
        self._num_steps = 0
        self._fruitless: dict[str, int] = {}
        """For each request, how often in a row nothing was drafted though it was asked."""
        self._resting: set[str] = set()
        """Requests for which nothing is looked up in this step."""
        self._row_costs = {True: RowCosts(), False: RowCosts()}
        self._overhead = self._drafting_seconds = self._rows_seconds = 0.0
        self._step = _Step(Load(), 0, 0, 0.0)
        self._drafting = self._modelling = False
        self._credit: float | None = None
        self._debt = 0.0
        """Seconds invested in text that the model has read, not earned back yet."""
        self._num_judged = 0
        self._planned: _Plan | None = None
        self._plain: float | None = None
        self._pause, self._steps_since_probe = _FIRST_PAUSE, 0

    @property
    def credit(self) -> float | None:
        """Seconds that drafting with the model may still lose; None before the first step."""
        return self._credit

    def num_draft_tokens(self, request: Request) -> int:
        """The cap: how many of them are used is settled in ``plan``, when it is known what was retrieved.

        In a crowd it takes its time to look for drafts and weigh them. So where that has been fruitless for a while,
        it is done in every other step only, later in every fourth.
        """
        if self.model is None and self._step.num_decoding >= _CROWD:
            fruitless = self._fruitless.get(request.request_id, 0)
            pause = 1 + (fruitless >= _FRUITLESS) + 2 * (fruitless >= 4 * _FRUITLESS)
            if self._num_steps % pause:
                self._resting.add(request.request_id)
                return 0
        self._resting.discard(request.request_id)
        return self._cap

    def why_none(self, request: Request) -> str:
        """That it rests, if it does."""
        return RESTING if request.request_id in self._resting else ""

    def begin_step(self, decoding: Sequence[Request], own: Load, prompts: Load) -> None:
        """Take in what the step's pass holds without drafts."""
        beside = self._overhead + sum(self._row_costs[request.params.greedy].first for request in decoding)
        self._step = _Step(own + prompts, len(decoding), len(decoding) + prompts.requests, beside)
        self._planned = self._plain = None
        self._num_steps += 1
        self._drafting_seconds = self._rows_seconds = 0.0

    def survival(self, request: Request, drafter: str, length: int, chances: Sequence[float] | None) -> Survival:
        """By what became of the drafter's drafts, this request's above all."""
        return self._of(drafter).survival(request.request_id, length, chances)

    def plan(self, drafts: Sequence[Draftable]) -> list[Choice]:
        """The drafts whose expected tokens are worth their time."""
        plain, asked = self.plain_seconds(), drafts
        if self.model is not None and self._num_judged < _LEARNT:
            drafts = _one_modelled(drafts)
        if self.model is not None and plain is not None:
            drafts = [d if self._may_read(d, plain) else replace(d, behind=None) for d in drafts]
        if plain is None or not any(len(d.survival) or d.behind is not None for d in drafts):
            self._count_fruitless(drafts, [0] * len(drafts))
            return [Choice(why=self._why(draft)) for draft in asked]
        modelled_rows = [0 if d.behind is None or self.model is None else self.model.max_tokens for d in drafts]
        most = sum(max(len(d.survival), rows) for d, rows in zip(drafts, modelled_rows, strict=True))
        costs = [self._step.beside_seconds + seconds for seconds in self.passes.after(self._step.load, most)]
        best = self._allot(drafts, [d.survival for d in drafts], [False] * len(drafts), costs)
        if best.worth < self._margin(best, self._drafting):
            best = _none(drafts)
        modelled = self._with_model(drafts, costs)
        if modelled is not None:
            gain = modelled.worth - best.worth
            pays = any(modelled.by_model) and gain >= self._margin(modelled, self._modelling)
            self._modelling = pays and self._can_afford(0.0)
            if self._modelling:
                best, self._pause = modelled, _FIRST_PAUSE
            else:
                best = self._probe(drafts, best, costs)
        self._drafting = any(best.counts)
        self._count_fruitless(drafts, best.counts)
        self._planned = best
        return [
            Choice(count, by_model, expected, "" if count else self._why(draft))
            for draft, count, by_model, expected in zip(asked, best.counts, best.by_model, best.expected, strict=True)
        ]

    def observe_outcome(
        self, request: Request, drafter: str, accepted: int, length: int, chances: Sequence[float] | None
    ) -> None:
        """Learn how far a draft came true."""
        if self.model is not None and drafter == self.model.name:
            self._num_judged += 1
            if accepted == length:
                self._pause = _FIRST_PAUSE
        self._of(drafter).observe(request.request_id, accepted, length, chances)

    def observe_drafting(self, seconds: float) -> None:
        """Learn what the model drafter costs."""
        self._drafting_seconds += seconds
        if self.model is not None and self._planned is not None:
            self.model.costs.observe(self._planned.draft_seconds, seconds)

    def observe_rows(self, request: Request, rows: int, seconds: float) -> None:
        """Learn what rows cost after the pass, for greedy and for sampled requests."""
        self._rows_seconds += seconds
        self._row_costs[request.params.greedy].observe(rows, seconds)

    def end_step(self, load: Load, pass_seconds: float, step_seconds: float, gained: int) -> None:
        """Learn what the pass cost; keep account of what speculation brought."""
        step, plain = self._step, self.plain_seconds()
        overhead = max(step_seconds - pass_seconds - self._drafting_seconds - self._rows_seconds, 0.0)
        self._overhead += (SLOW if self._overhead else 1.0) * (overhead - self._overhead)
        self.passes.observe(load, pass_seconds)
        self._steps_since_probe = 0 if self._modelling else self._steps_since_probe + 1
        if plain is None or not gained:
            return
        most = _CREDIT_STEPS * plain
        earned = EXPLORATION_SHARE * step_seconds
        if self._planned is not None and any(self._planned.by_model):
            # What the tokens would have taken without drafts, less what they took.
            earned += gained / step.num_decoding * plain - step_seconds + self._planned.invested
            self._debt += self._planned.invested
        repaid = min(max(earned, 0.0), self._debt)
        self._debt -= repaid
        self._credit = most if self._credit is None else min(self._credit + earned - repaid, most)

    def plain_seconds(self) -> float | None:
        """The step without drafts, by the cost tables."""
        if self._plain is None and self._step.num_decoding:
            self._plain = self.passes.seconds(self._step.load) + self._step.beside_seconds
        return self._plain

    def forget(self, request_id: str) -> None:
        """Drop what is known of one request; what it taught of the drafters stays."""
        self._fruitless.pop(request_id, None)
        self._resting.discard(request_id)
        for estimates in self._estimates.values():
            estimates.forget(request_id)

    def _may_read(self, draft: Draftable, plain: float) -> bool:
        """Whether the model may read a text to draft from it.

        Only once the answer has taken half that time: by then it has shown whether retrieval does as well, and that it
        is not over soon. And only while no more than a few steps' time is invested that was not earned back.
        """
        if self.model is None or draft.behind is None or draft.behind <= _UNREAD:
            return True
        reading = self.model.costs.seconds(1, 1, draft.behind) - self.model.costs.seconds(1, 1, 1)
        waited = draft.request.num_output_tokens * plain
        return waited >= 0.5 * reading and self._debt <= _CREDIT_STEPS * plain

    def _count_fruitless(self, drafts: Sequence[Draftable], counts: Sequence[int]) -> None:
        for draft, count in zip(drafts, counts, strict=True):
            name = draft.request.request_id
            self._fruitless[name] = 0 if count else self._fruitless.get(name, 0) + 1

    def _of(self, drafter: str) -> SurvivalEstimates:
        estimates = self._estimates.get(drafter)
        if estimates is None:
            estimates = self._estimates[drafter] = SurvivalEstimates(PRIORS.get(drafter, _PRIOR))
        return estimates

    def _allot(
        self,
        drafts: Sequence[Draftable],
        survivals: Sequence[Survival],
        by_model: Sequence[bool],
        costs: Sequence[float],
        drafting: float = 0.0,
    ) -> _Plan:
        """Rows to the drafts that speed their requests up most, as long as that pays; ``drafting`` seconds if any."""
        after = [self._row_costs[draft.request.params.greedy].further for draft in drafts]
        slots = []
        for i, survival in enumerate(survivals):
            speed = 1.0
            for chance in survival:
                slots.append((-math.log1p(chance / speed), i, chance))
                speed += chance
        slots.sort(key=_loss)  # stable: those of one request stay in the order of their draft
        plan, most, worth, seconds = _none(drafts), 0, 0.0, drafting
        for count, (loss, i, _) in enumerate(slots, 1):
            worth -= loss
            seconds += after[i]
            net = worth - self._step.num_requests * math.log((costs[count] + seconds) / costs[0])
            if net > plan.worth:
                plan.worth, most = net, count
        for _, i, chance in slots[:most]:
            plan.counts[i] += 1
            plan.expected[i] += chance
        plan.by_model = [bool(model and count) for model, count in zip(by_model, plan.counts, strict=True)]
        return plan

    def _with_model(
        self, drafts: Sequence[Draftable], costs: Sequence[float], *, hopeful: bool = False
    ) -> _Plan | None:
        """The best plan in which the model drafts for every request of which it promises more than was retrieved.

        A ``hopeful`` one takes each of the model's tokens to be rejected half as often as is known.
        """
        model = self.model
        if model is None:
            return None
        longest = [min(d.max_tokens, model.max_tokens) if d.behind is not None else 0 for d in drafts]
        deepest = max(longest, default=0)
        if not deepest:
            return None
        survivals = [self._model_survival(d, n, hopeful=hopeful) for d, n in zip(drafts, longest, strict=True)]
        best = _none(drafts)
        for depth in [deepest] if model.tree else [*(each for each in _DEPTHS if each < deepest), deepest]:
            by_model = [
                bool(n) and sum(s[:depth]) > sum(d.survival) for d, s, n in zip(drafts, survivals, longest, strict=True)
            ]
            if not any(by_model):
                continue
            offered = [
                s[:depth] if chosen else d.survival for d, s, chosen in zip(drafts, survivals, by_model, strict=True)
            ]
            charged, _ = self._drafting_times(
                [(d, depth) for d, chosen in zip(drafts, by_model, strict=True) if chosen]
            )
            plan = self._allot(drafts, offered, by_model, costs, charged)
            if plan.worth > best.worth:
                best = plan
        charged, best.draft_seconds = self._drafting_times(_modelled(drafts, best))
        best.invested = max(best.draft_seconds - charged, 0.0)
        return best

    def _model_survival(self, draft: Draftable, length: int, *, hopeful: bool = False) -> Survival:
        if self.model is None or not length:
            return []
        survival = self.survival(draft.request, self.model.name, length, None)
        if hopeful:
            rates = (
                after / before if before else 0.0 for before, after in zip((1.0, *survival), survival, strict=False)
            )
            survival = list(accumulate((0.5 + 0.5 * rate for rate in rates), operator.mul))
        return [sum(survival) / length] * length if self.model.tree else survival

    def _drafting_times(self, chosen: Sequence[tuple[Draftable, int]]) -> tuple[float, float]:
        """Seconds to charge for the model's drafts, and those that they take now.

        They differ where the model has text to read first, which is paid in instalments.
        """
        if self.model is None or not chosen:
            return 0.0, 0.0
        depth = max(count for _, count in chosen)
        context = sum(d.request.num_tokens for d, _ in chosen)
        behind = sum(max((d.behind or 1) - 1, 0) for d, _ in chosen)
        now = self.model.costs.seconds(len(chosen), depth, behind, context)
        caught_up = self.model.costs.seconds(len(chosen), depth, min(behind, len(chosen)), context)
        instalments = max(1, min(_AMORTISE_TOKENS, *(d.request.num_remaining_tokens for d, _ in chosen)) // (1 + depth))
        return caught_up + max(now - caught_up, 0.0) / instalments, now

    @staticmethod
    def _margin(plan: _Plan, going_on: bool) -> float:
        return (_KEEP_MARGIN if going_on else _BEGIN_MARGIN) * sum(count > 0 for count in plan.counts)

    def _can_afford(self, loss: float) -> bool:
        return self._credit is None or self._credit > loss

    def _probe(self, drafts: Sequence[Draftable], best: _Plan, costs: Sequence[float]) -> _Plan:
        """Now and then let the model draft for one request all the same: what paid not once may pay now.

        But not where it would not even pay if the model were a good deal better than is known.
        """
        if self.model is None or self._steps_since_probe < self._pause:
            return best
        hoped = self._with_model(drafts, costs, hopeful=True)
        if hoped is None or hoped.worth - best.worth < self._margin(hoped, going_on=False):
            self._steps_since_probe = self._pause - _FIRST_PAUSE // 2  # asked again soon: requests come and go
            return best
        places = [
            place for place, d in enumerate(drafts) if d.behind is not None and not best.counts[place] and d.max_tokens
        ]
        if not places:
            return best
        place = min(places, key=lambda each: drafts[each].behind or 0)
        length = min(_PROBE_TOKENS, drafts[place].max_tokens, self.model.max_tokens)
        plan = _Plan(list(best.counts), list(best.by_model), list(best.expected))
        plan.counts[place], plan.by_model[place] = length, True
        plan.expected[place] = sum(self._model_survival(drafts[place], length))
        _, plan.draft_seconds = self._drafting_times(_modelled(drafts, plan))
        total = sum(plan.counts)
        if not self._can_afford(plan.draft_seconds + costs[total] - costs[total - length]):
            return best
        self._steps_since_probe = 0
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return plan

    def _why(self, draft: Draftable) -> str:
        return NOTHING_FOUND if not len(draft.survival) and draft.behind is None else NOT_WORTH_IT
