"""The owner of speculation: which drafter proposes, how many tokens, and what is learnt from the outcome.

The engine calls ``budget`` while it schedules, ``propose`` before the pass, ``learn`` after the step, and ``forget``
when a request ends or is preempted. Nothing else in the engine knows drafters or policies.

Two kinds of drafters are kept apart. *Retrieval* drafters look text up at almost no cost. At most one *model* drafter
spends time on its drafts. Whoever proposes, the contract of ``Proposal`` holds, and the choice is made before anything
is drawn, so it changes only how fast tokens come.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from outrider.drafters.base import Drafter, DraftRequest, ExtendedDrafter, Proposal, ProposalNote, extended
from outrider.request import Request
from outrider.request_state import RequestState
from outrider.scheduler.scheduler import Grant
from outrider.speculation.acceptance import (
    DEFAULT_PRIOR,
    PRIORS,
    AcceptanceEstimates,
    AcceptanceProbs,
    RequestOutcomes,
)
from outrider.speculation.costs import PassLoad
from outrider.speculation.policy import (
    NOT_WORTH_IT,
    NOTHING_FOUND,
    PAUSED,
    Choice,
    Draftable,
    FixedPolicy,
    Policy,
    StepOutlook,
)
from outrider.speculation.report import StepReport
from outrider.verification.base import check_proposal

logger = logging.getLogger(__name__)

_NO_DRAFTS = Proposal()
_WITHOUT_DRAFTS = {why: Proposal(note=ProposalNote(why=why)) for why in ("", NOTHING_FOUND, NOT_WORTH_IT, PAUSED)}


@dataclass(frozen=True)
class _Retrieved:
    """What a retrieval drafter proposed after ``start`` committed tokens, and its acceptance probabilities."""

    drafter: Drafter
    proposal: Proposal
    start: int
    probs: AcceptanceProbs

    def num_correct(self, request: Request) -> int | None:
        """How many of its tokens the request went on with; None while that is open."""
        drafted, actual = self.proposal.token_ids, request.token_ids[self.start : self.start + len(self.proposal)]
        wrong = next((i for i, (one, other) in enumerate(zip(drafted, actual, strict=False)) if one != other), None)
        return len(actual) if wrong is None and len(actual) == len(drafted) else wrong


@dataclass
class _Record:
    """What is known of one request: its outcomes by drafter, and a retrieved draft whose outcome is still open."""

    outcomes: dict[str, RequestOutcomes] = field(default_factory=dict)
    open: _Retrieved | None = None
    proposed_by: Drafter | None = None
    steps_without_drafts: int = 0
    paused: bool = False


class Speculator:
    """``retrieval`` drafters, at most one ``model`` drafter, and the policy that chooses between them.

    Of what is looked up the draft with the greatest expected number of accepted tokens stands for all. The policy takes
    as much of it as pays, or lets the model draft instead. A looked-up draft is compared with what the request goes on
    to say whether it was verified or not. So drafters are learnt about at no cost.
    """

    def __init__(
        self,
        retrieval: Sequence[Drafter] = (),
        model: Drafter | None = None,
        policy: Policy | None = None,
        *,
        name: str = "composite",
        model_max_tokens: int = 64,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``model_max_tokens`` is the most that the model drafts in a round, whatever K. ``name`` is that of the whole.

        Without drafters nothing is ever drafted.
        """
        self.name = name
        self.policy = policy or FixedPolicy(0)
        self.retrieval = tuple(extended(drafter) for drafter in retrieval)
        self.model = None if model is None else extended(model)
        self._model_max_tokens = model_max_tokens
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self._estimates: dict[str, AcceptanceEstimates] = {}
        self._plain_seconds: float | None = None
        self._drafting_seconds = self._model_seconds = 0.0

    @property
    def active(self) -> bool:
        """True if there is a drafter."""
        return self.model is not None or bool(self.retrieval)

    @property
    def _drafters(self) -> tuple[ExtendedDrafter, ...]:
        return self.retrieval if self.model is None else (*self.retrieval, self.model)

    @property
    def methods(self) -> tuple[str, ...]:
        """Names by which a request may choose a drafter; ``off`` always works."""
        own = (self.name, *(drafter.name for drafter in self._drafters)) if self.active else ()
        return tuple(dict.fromkeys(("off", *own)))

    @property
    def nbytes(self) -> int:
        """Memory of the drafters' indexes of text in bytes."""
        return sum(drafter.nbytes for drafter in self._drafters)

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The layers whose input the model drafter needs for every scored row, see ``ModelRunner.forward``."""
        return () if self.model is None else self.model.hidden_layers

    def budget(self, request: Request) -> int:
        """The most tokens to reserve slots for in the request's next step. There may be less room."""
        if not self.active:
            return 0
        record = self._record(request.request_id)
        tokens = self.policy.budget(request, record.steps_without_drafts)
        record.paused = not tokens and record.steps_without_drafts > 0
        return tokens

    def propose(self, grants: Sequence[Grant[RequestState]]) -> list[Proposal]:
        """One checked proposal for each grant, in order, without drafts where none pay or none are allowed."""
        if not self.active:
            return [_NO_DRAFTS] * len(grants)
        begin = self._clock()
        self._model_seconds = 0.0
        places = [place for place, grant in enumerate(grants) if grant.max_drafts]
        batch = [_draft_request(grants[place]) for place in places]
        found = self._look_up(batch)
        outlook = StepOutlook(
            PassLoad.of((grant.request.num_computed_tokens, grant.num_tokens) for grant in grants),
            [grant.request for grant in grants if grant.decodes],
            len(grants),
        )
        drafts = [self._draftable(entry, each) for entry, each in zip(batch, found, strict=True)]
        plan = self.policy.plan(outlook, drafts)
        self._plain_seconds = plan.plain_seconds
        proposals = [self._without_drafts(grant) for grant in grants]
        for place, proposal in zip(places, self._chosen(batch, found, plan.choices), strict=True):
            proposals[place] = proposal
        self._drafting_seconds = self._clock() - begin
        return proposals

    def learn(self, report: StepReport) -> None:
        """Tell drafters and policy what became of the proposals, and enter the times in the requests' metrics."""
        report.drafting_seconds, report.model_seconds = self._drafting_seconds, self._model_seconds
        for outcome in report.outcomes:
            request, proposal = outcome.request, outcome.proposal
            if outcome.decoding:
                request.metrics.speculative_decoding.add_times(
                    outcome.num_gained,
                    0.0 if proposal.note is None else proposal.note.expected,
                    draft_seconds=report.drafting_seconds if len(proposal) else 0.0,
                    verify_seconds=report.forward_seconds + report.row_seconds,
                    step_seconds=report.seconds,
                    plain_seconds=self._plain_seconds,
                )
            if request.finished:
                self.forget(request.request_id)
            elif self.active and outcome.num_gained:
                self._learn_outcome(request, len(proposal), outcome.num_accepted)
                if self.model is not None and outcome.hidden is not None:
                    self.model.observe_hidden(request, outcome.hidden)
        if self.active:
            self.policy.learn(report)

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request that ended or was preempted. What it taught about drafters stays."""
        self._records.pop(request_id, None)
        for drafter in self._drafters:
            try:
                drafter.forget(request_id)
            except Exception:
                logger.exception("drafter %s failed to forget request %s", drafter.name, request_id)

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless the drafters' blocks add up."""
        for drafter in self._drafters:
            drafter.check_integrity()

    def _record(self, request_id: str) -> _Record:
        record = self._records.get(request_id)
        if record is None:
            record = self._records[request_id] = _Record()
        return record

    def _estimates_of(self, drafter: Drafter) -> AcceptanceEstimates:
        estimates = self._estimates.get(drafter.name)
        if estimates is None:
            prior = PRIORS.get(drafter.name, DEFAULT_PRIOR)
            estimates = self._estimates[drafter.name] = AcceptanceEstimates(prior)
        return estimates

    def _acceptance(
        self, request: Request, drafter: Drafter, length: int, chances: Sequence[float] | None = None
    ) -> AcceptanceProbs:
        own = self._record(request.request_id).outcomes.get(drafter.name)
        return self._estimates_of(drafter).probs(own, length, chances)

    def _observe(
        self, request: Request, drafter: Drafter, accepted: int, length: int, chances: Sequence[float] | None
    ) -> None:
        own = self._record(request.request_id).outcomes.setdefault(drafter.name, RequestOutcomes())
        self._estimates_of(drafter).observe(own, accepted, length, chances)

    def _without_drafts(self, grant: Grant[RequestState]) -> Proposal:
        """No drafts; the note gives the reason where look-ups are paused."""
        if grant.max_drafts or not grant.decodes or not grant.request.num_output_tokens:
            return _NO_DRAFTS
        record = self._records.get(grant.request.request_id)
        return _WITHOUT_DRAFTS[PAUSED] if record is not None and record.paused else _NO_DRAFTS

    def _look_up(self, batch: Sequence[DraftRequest]) -> list[_Retrieved | None]:
        """For each entry the looked-up draft with the greatest expected number of accepted tokens."""
        best: list[_Retrieved | None] = [None] * len(batch)
        for drafter in self.retrieval:
            places = [place for place, entry in enumerate(batch) if self._allowed(entry.request, drafter)]
            if not places:
                continue
            for place, proposal in zip(places, self._ask(drafter, [batch[p] for p in places]), strict=True):
                if not len(proposal):
                    continue
                request, other = batch[place].request, best[place]
                probs = self._acceptance(request, drafter, len(proposal), proposal.chances)
                if other is None or sum(probs) > sum(other.probs):
                    best[place] = _Retrieved(drafter, proposal, request.num_tokens, probs)
        for entry, retrieved in zip(batch, best, strict=True):
            record = self._record(entry.request.request_id)
            if retrieved is not None and record.open is None:
                record.open = retrieved
        return best

    def _draftable(self, entry: DraftRequest, retrieved: _Retrieved | None) -> Draftable:
        probs: AcceptanceProbs = () if retrieved is None else retrieved.probs
        model, request = self.model, entry.request
        if model is None or not self._allowed(request, model):
            return Draftable(request, entry.max_tokens, probs)
        modelled = self._acceptance(request, model, min(entry.max_tokens, self._model_max_tokens))
        return Draftable(request, entry.max_tokens, probs, modelled, model.num_uncomputed_tokens(request))

    def _chosen(
        self, batch: Sequence[DraftRequest], found: Sequence[_Retrieved | None], choices: Sequence[Choice]
    ) -> list[Proposal]:
        """What the policy chose for each entry, checked, without what the request's grammar would reject."""
        proposals = [_WITHOUT_DRAFTS.get(choice.why, _NO_DRAFTS) for choice in choices]
        modelled = []
        for place, (entry, retrieved, choice) in enumerate(zip(batch, found, choices, strict=True)):
            record = self._record(entry.request.request_id)
            record.steps_without_drafts = 0 if choice.num_tokens else record.steps_without_drafts + 1
            record.proposed_by = None
            if choice.num_tokens and choice.by_model:
                modelled.append(place)
            elif choice.num_tokens and retrieved is not None:
                proposal = _first_tokens(retrieved.proposal, choice.num_tokens)
                proposals[place] = self._checked(entry, proposal, retrieved.drafter, choice)
        if self.model is not None and modelled:
            entries = [replace(batch[place], max_tokens=choices[place].num_tokens) for place in modelled]
            begin = self._clock()
            drawn = self._ask(self.model, entries)
            self._model_seconds = self._clock() - begin
            for place, entry, proposal in zip(modelled, entries, drawn, strict=True):
                proposals[place] = self._checked(entry, proposal, self.model, choices[place])
        return proposals

    def _ask(self, drafter: Drafter, entries: Sequence[DraftRequest]) -> list[Proposal]:
        """A proposal for each entry. A drafter that fails costs a request its drafts, nothing else."""
        try:
            proposals = drafter.propose(entries)
        except Exception:
            # One request may have broken the batch: retry one at a time, so that only the failing one loses its drafts.
            logger.exception("drafter %s failed on a batch of %d", drafter.name, len(entries))
            for entry in entries:
                self.forget(entry.request.request_id)
            proposals = [self._ask_alone(drafter, entry) for entry in entries]
        if len(proposals) != len(entries):
            for entry in entries:
                problem = f"gave {len(proposals)} proposals for {len(entries)} requests"
                self._stop(entry.request, drafter, problem)
            return [_NO_DRAFTS] * len(entries)
        return proposals

    def _ask_alone(self, drafter: Drafter, entry: DraftRequest) -> Proposal:
        try:
            (proposal,) = drafter.propose([entry])
        except Exception as error:
            self._stop(entry.request, drafter, f"{type(error).__name__}: {error}")
            return _NO_DRAFTS
        return proposal

    def _checked(self, entry: DraftRequest, proposal: Proposal, drafter: Drafter, choice: Choice) -> Proposal:
        """``proposal`` if it keeps the contract, with a note of who made it; else the request drafts no more."""
        if entry.request.drafting_stopped:
            return _NO_DRAFTS
        try:
            check_proposal(proposal, vocab_size=entry.sampler.vocab_size, max_tokens=entry.max_tokens)
            proposal = _legal(proposal, entry)
        except ValueError as error:
            self._stop(entry.request, drafter, str(error))
            return _NO_DRAFTS
        self._record(entry.request.request_id).proposed_by = drafter
        return replace(proposal, note=ProposalNote(drafter.name, choice.expected))

    def _learn_outcome(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """The outcome of what was verified, for its drafter; that of what was looked up, as soon as it is known."""
        record = self._record(request.request_id)
        drafter = record.proposed_by
        if num_drafted and drafter is not None:
            try:
                drafter.observe(request, num_drafted, num_accepted)
            except Exception as error:
                self._stop(request, drafter, f"{type(error).__name__}: {error}")
                return
            if self.model is not None and drafter.name == self.model.name:
                self._observe(request, drafter, num_accepted, num_drafted, None)
        retrieved = record.open
        correct = None if retrieved is None else retrieved.num_correct(request)
        if retrieved is not None and correct is not None:
            record.open = None
            self._observe(request, retrieved.drafter, correct, len(retrieved.proposal), retrieved.proposal.chances)

    def _stop(self, request: Request, drafter: Drafter, problem: str) -> None:
        """Go on without speculation for this request, and say so in its metrics."""
        logger.warning(
            "request %s goes on without speculation: drafter %s %s", request.request_id, drafter.name, problem
        )
        request.drafting_stopped = True
        reason = f"drafter {drafter.name!r}: {problem}"
        request.metrics.speculation = replace(request.metrics.speculation, inactive_reason=reason)
        self.forget(request.request_id)

    def _allowed(self, request: Request, drafter: Drafter) -> bool:
        return request.params.speculative_method in (None, self.name, drafter.name)


def _draft_request(grant: Grant[RequestState]) -> DraftRequest:
    request = grant.request
    return DraftRequest(request, grant.max_drafts, request.noise.at_step(request.num_tokens), request.sampler)


def _first_tokens(proposal: Proposal, count: int) -> Proposal:
    if count >= len(proposal):
        return proposal
    chances = None if proposal.chances is None else proposal.chances[:count]
    return replace(proposal, token_ids=proposal.token_ids[:count], chances=chances)


def _legal(proposal: Proposal, entry: DraftRequest) -> Proposal:
    """A chain of point masses up to the first token that the request's grammar rejects.

    Drawn drafts must stay as they are. In a tree a rejected node is never reached.
    """
    if proposal.probs is not None or proposal.parents is not None or not len(proposal):
        return proposal
    return _first_tokens(proposal, entry.sampler.num_legal(entry.request.token_ids, proposal.token_ids))
