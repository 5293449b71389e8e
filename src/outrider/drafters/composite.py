"""Several drafters for one request: text that was seen before, which costs nothing, and a model where that pays.

Whoever proposes, its own rule holds: retrieval gives point masses, a model point masses or tokens with their
distribution. Who proposes, and how much, is the planner's to say before anything is drawn, from outcomes and times of
earlier steps and from the retrieved text alone; so it never changes what is emitted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from outrider.drafters.base import Drafter, DraftRequest, Proposal, ProposalNote
from outrider.request import Request
from outrider.scheduler.speculation import NOT_WORTH_IT, NOTHING_FOUND, Choice, Draftable, SpeculationController
from outrider.scheduler.survival import Survival


@dataclass(frozen=True)
class _Retrieved:
    """A retrieval drafter's proposal for a request of ``start`` committed tokens, and how far it should be accepted."""

    drafter: Drafter
    proposal: Proposal
    start: int
    survival: Survival

    def outcome(self, request: Request) -> int | None:
        """How many of its tokens came true; None while that is open."""
        drafted, said = self.proposal.token_ids, request.token_ids[self.start : self.start + len(self.proposal)]
        matched = next((i for i, (one, other) in enumerate(zip(drafted, said, strict=False)) if one != other), None)
        return len(said) if matched is None and len(said) == len(drafted) else matched


class CompositeDrafter:
    """``retrieval`` drafters, which cost nothing, and at most one ``model`` drafter.

    Of what is retrieved the draft that should be accepted furthest stands for all. The planner takes so much of it as
    pays, or has the model draft instead. A retrieved draft is compared with what the request went on to say whether it
    was verified or not; so the planner learns of drafters that it does not let propose, at no cost.
    """

    def __init__(
        self,
        retrieval: Sequence[Drafter],
        model: Drafter | None = None,
        *,
        name: str = "composite",
        model_max_tokens: int = 64,
        planner: SpeculationController | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``model_max_tokens`` is the most that the model drafts in a round, whatever K; ``name`` is the whole's."""
        self.name = name
        self.planner = planner or SpeculationController()
        self._retrieval = tuple(retrieval)
        self._model = model
        self._model_max_tokens = model_max_tokens
        self._clock = clock
        self._open: dict[str, _Retrieved] = {}
        self._proposed: dict[str, Drafter] = {}

    @property
    def methods(self) -> tuple[str, ...]:
        """Names that a request may choose a drafter by."""
        return tuple(dict.fromkeys((self.name, *(each.name for each in self._drafters))))

    @property
    def nbytes(self) -> int:
        """Memory of the drafters' indexes of text in bytes, of those that tell."""
        return sum(getattr(drafter, "nbytes", 0) for drafter in self._drafters)

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """For each entry what the planner chooses."""
        for entry in batch:
            self._settle(entry.request)
        found = self._retrieve(batch)
        drafts = [self._draftable(entry, each) for entry, each in zip(batch, found, strict=True)]
        choices = self.planner.plan(drafts)
        proposals = []
        for entry, each, choice in zip(batch, found, choices, strict=True):
            proposal, drafter = Proposal(), None
            if each is not None and not choice.by_model and choice.num_tokens:
                proposal, drafter = _beginning(each.proposal, choice.num_tokens), each.drafter
                self._proposed[entry.request.request_id] = drafter
            proposals.append(_noted(proposal, choice, drafter))
        wanted = [place for place, choice in enumerate(choices) if choice.by_model and choice.num_tokens]
        if self._model is not None and wanted:
            entries = [
                replace(batch[place], max_tokens=min(choices[place].num_tokens, self._model_max_tokens))
                for place in wanted
            ]
            begin = self._clock()
            drawn = self._model.propose(entries)
            self.planner.observe_drafting(self._clock() - begin)
            for place, proposal in zip(wanted, drawn, strict=True):
                self._proposed[batch[place].request.request_id] = self._model
                proposals[place] = _noted(proposal, choices[place], self._model)
        return proposals

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Tell the drafter that proposed."""
        drafter = self._proposed.pop(request.request_id, None)
        if drafter is None:
            return
        drafter.observe(request, num_drafted, num_accepted)
        if drafter is self._model:
            self.planner.observe_outcome(request, drafter.name, num_accepted, num_drafted, None)

    def forget(self, request_id: str) -> None:
        """Drop the request's state here and in every drafter."""
        self._proposed.pop(request_id, None)
        self._open.pop(request_id, None)
        for drafter in self._drafters:
            drafter.forget(request_id)

    @property
    def _drafters(self) -> tuple[Drafter, ...]:
        return self._retrieval if self._model is None else (*self._retrieval, self._model)

    def _settle(self, request: Request) -> None:
        """Tell the planner what became of a retrieved draft, as soon as that is known."""
        retrieved = self._open.get(request.request_id)
        accepted = None if retrieved is None else retrieved.outcome(request)
        if retrieved is not None and accepted is not None:
            del self._open[request.request_id]
            proposal = retrieved.proposal
            name, chances = retrieved.drafter.name, proposal.chances
            self.planner.observe_outcome(request, name, accepted, len(proposal), chances)

    def _retrieve(self, batch: Sequence[DraftRequest]) -> list[_Retrieved | None]:
        """For each entry the retrieved draft that should be accepted furthest."""
        best: list[_Retrieved | None] = [None] * len(batch)
        for drafter in self._retrieval:
            places = [place for place, entry in enumerate(batch) if _allows(entry.request, drafter.name, self.name)]
            if not places:
                continue
            for place, proposal in zip(places, drafter.propose([batch[place] for place in places]), strict=True):
                if not len(proposal):
                    continue
                request, other = batch[place].request, best[place]
                survival = self.planner.survival(request, drafter.name, len(proposal), proposal.chances)
                if other is None or sum(survival) > sum(other.survival):
                    best[place] = _Retrieved(drafter, proposal, request.num_tokens, survival)
        for entry, retrieved in zip(batch, best, strict=True):
            if retrieved is not None:
                self._open.setdefault(entry.request.request_id, retrieved)
        return best

    def _draftable(self, entry: DraftRequest, retrieved: _Retrieved | None) -> Draftable:
        behind = None
        if self._model is not None and _allows(entry.request, self._model.name, self.name):
            count = getattr(self._model, "num_behind", None)
            behind = 1 if count is None else count(entry.request)
        most = entry.max_tokens
        survival: Survival = () if retrieved is None else retrieved.survival
        return Draftable(entry.request, most, survival, behind)


def _allows(request: Request, drafter: str, whole: str) -> bool:
    return request.params.speculative_method in (None, whole, drafter)


def _beginning(proposal: Proposal, count: int) -> Proposal:
    if count >= len(proposal):
        return proposal
    chances = None if proposal.chances is None else proposal.chances[:count]
    return replace(proposal, token_ids=proposal.token_ids[:count], chances=chances)


_NOTES = {why: ProposalNote(why=why) for why in ("", NOTHING_FOUND, NOT_WORTH_IT)}


def _noted(proposal: Proposal, choice: Choice, drafter: Drafter | None) -> Proposal:
    if drafter is None:
        return Proposal(note=_NOTES[choice.why])
    return replace(proposal, note=ProposalNote(drafter.name, choice.expected))
