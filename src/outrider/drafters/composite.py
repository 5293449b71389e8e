"""Several drafters for one request: text that was seen before first, a model where that promises more per second.

Whoever proposes, its own rule holds: retrieval gives point masses, a model point masses or tokens with their law. Which
one proposes is settled before anything is drawn, from outcomes and times of earlier steps and from the retrieved text
alone, so it never changes what is emitted.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from outrider.drafters.base import Drafter, DraftRequest, Proposal
from outrider.request import Request

_MEMORY = 0.95
"""What an outcome weighs after one more outcome."""
_RECENT = 15
"""Times of so many calls are remembered; their median is what a call is taken to cost."""
_DRAFT_COST = 0.5
"""A round of the model over a pass of the target, until both have been timed."""


class _Outcomes:
    """Accepted tokens per proposal, and over what was promised; recent ones weigh more."""

    def __init__(self, prior_accepted: float, prior_weight: float) -> None:
        self._accepted = prior_accepted * prior_weight
        self._weight = prior_weight

    def add(self, accepted: float, weight: float) -> None:
        """One outcome."""
        self._accepted = self._accepted * _MEMORY + accepted
        self._weight = self._weight * _MEMORY + weight

    @property
    def mean(self) -> float:
        """Accepted per unit of weight."""
        return self._accepted / self._weight


class CompositeDrafter:
    """``retrieval`` drafters, which cost nothing, and at most one ``model`` drafter, which proposes only where it pays.

    A retrieval proposal's expected number of accepted tokens is the sum of its ``chances``, corrected by how such
    promises of its drafter were kept so far; the model's is what it had accepted of late, for this request and for all.
    The one with the larger (1 + expected) / (seconds of a target pass + seconds of drafting) proposes; where nothing
    was retrieved, the model.
    """

    def __init__(
        self,
        retrieval: Sequence[Drafter],
        model: Drafter | None = None,
        *,
        name: str = "composite",
        model_max_tokens: int = 4,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``model_max_tokens`` is the most that the model drafts in a round, whatever K; ``name`` is the whole's."""
        self.name = name
        self._retrieval = tuple(retrieval)
        self._model = model
        self._model_max_tokens = model_max_tokens
        self._clock = clock
        self._kept = {drafter.name: _Outcomes(1.0, 1.0) for drafter in self._retrieval}
        self._all = _Outcomes(0.5 * model_max_tokens, 2.0)
        self._own: dict[str, _Outcomes] = {}
        self._proposed: dict[str, tuple[Drafter, float]] = {}
        self._model_seconds: deque[float] = deque(maxlen=_RECENT)
        self._pass_seconds: deque[float] = deque(maxlen=_RECENT)
        self._ended: float | None = None

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """For each entry the proposal of the drafter that promises most."""
        begin = self._clock()
        if self._ended is not None:
            self._pass_seconds.append(begin - self._ended)
        chosen = self._retrieved(batch)
        if self._model is not None:
            self._add_modelled(self._model, batch, chosen)
        for entry, (proposal, drafter, promised) in zip(batch, chosen, strict=True):
            if drafter is not None and len(proposal):
                self._proposed[entry.request.request_id] = (drafter, promised)
        self._ended = self._clock()
        return [proposal for proposal, _, _ in chosen]

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Tell the drafter that proposed; remember how its promise was kept."""
        drafter, promised = self._proposed.pop(request.request_id, (None, 0.0))
        if drafter is None:
            return
        drafter.observe(request, num_drafted, num_accepted)
        if drafter is self._model:
            self._all.add(num_accepted, 1.0)
            self._own_outcomes(request).add(num_accepted, 1.0)
        else:
            self._kept[drafter.name].add(num_accepted, promised)

    def forget(self, request_id: str) -> None:
        """Drop the request's state here and in every drafter."""
        self._proposed.pop(request_id, None)
        self._own.pop(request_id, None)
        for drafter in (*self._retrieval, *([] if self._model is None else [self._model])):
            drafter.forget(request_id)

    def _retrieved(self, batch: Sequence[DraftRequest]) -> list[tuple[Proposal, Drafter | None, float]]:
        """For each entry the best retrieval proposal, its drafter, and what that promised."""
        best: list[tuple[Proposal, Drafter | None, float]] = [(Proposal(), None, 0.0) for _ in batch]
        for drafter in self._retrieval:
            for place, proposal in enumerate(drafter.propose(batch)):
                if not len(proposal):
                    continue
                promised = 0.5 * len(proposal) if proposal.chances is None else sum(proposal.chances)
                _, other, beaten = best[place]
                if other is None or self._expected(drafter, promised) > self._expected(other, beaten):
                    best[place] = (proposal, drafter, promised)
        return best

    def _expected(self, drafter: Drafter, promised: float) -> float:
        return promised * min(self._kept[drafter.name].mean, 1.0)

    def _add_modelled(
        self, model: Drafter, batch: Sequence[DraftRequest], chosen: list[tuple[Proposal, Drafter | None, float]]
    ) -> None:
        target = statistics.median(self._pass_seconds) if self._pass_seconds else 1.0
        drafting = statistics.median(self._model_seconds) if self._model_seconds else _DRAFT_COST * target
        places = []
        for place, (entry, (_, drafter, promised)) in enumerate(zip(batch, chosen, strict=True)):
            modelled = min(self._own_outcomes(entry.request).mean, entry.max_tokens, self._model_max_tokens)
            if (
                drafter is None
                or (1.0 + modelled) / (target + drafting) > (1.0 + self._expected(drafter, promised)) / target
            ):
                places.append(place)
        if not places:
            return
        begin = self._clock()
        wanted = [batch[place] for place in places]
        capped = [replace(entry, max_tokens=min(entry.max_tokens, self._model_max_tokens)) for entry in wanted]
        for place, proposal in zip(places, model.propose(capped), strict=True):
            chosen[place] = (proposal, model, 0.0)
        self._model_seconds.append(self._clock() - begin)

    def _own_outcomes(self, request: Request) -> _Outcomes:
        """A request starts out with what all requests had."""
        return self._own.setdefault(request.request_id, _Outcomes(self._all.mean, 2.0))
