"""How far a draft will be accepted: estimates for one drafter, from outcomes so far. No clock, no arrays.

The *acceptance probability* of a draft's token is the probability that it and all tokens before it are accepted. It
never rises along a draft.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate

AcceptanceProbs = Sequence[float]
"""Acceptance probabilities of a draft's tokens, each at most the one before it."""

PRIORS = {"prediction": 0.8, "ngram": 0.5}
DEFAULT_PRIOR = 0.7
"""Probability that a drafter's token is accepted after those before it, before any outcome is known."""
_POOL_DECAY = 0.99
_REQUEST_DECAY = 0.9
"""Weight of an outcome after one more of the same kind: about the last ten outcomes of a request count."""
_POOL_PRIOR_WEIGHT = 3.0
_REQUEST_PRIOR_WEIGHT = 3.0
"""Weight of the prior, in observed outcomes. The pool starts from the drafter's prior, a request from the pool."""
_ESTIMATE_PRIOR_WEIGHT = 1.0
"""Weight of the prior where drafters give estimates of their own, in estimated tokens."""
_HIGHEST_RATE = 0.99
_HIGHEST_PROBS = [_HIGHEST_RATE ** (place + 1) for place in range(256)]


class _Positions:
    """Decayed counts of drafts that reached each position, and of those accepted there."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._accepted: list[float] = []
        self._reached: list[float] = []

    def add(self, accepted: int, length: int) -> None:
        """Count a draft of ``length`` tokens, of which the first ``accepted`` were accepted."""
        reached = min(accepted + 1, length)
        more = reached - len(self._reached)
        if more > 0:
            self._accepted += [0.0] * more
            self._reached += [0.0] * more
        # Only reached positions decay, so that late positions are not forgotten while drafts are short.
        for place in range(reached):
            self._accepted[place] = self._accepted[place] * self._decay + (place < accepted)
            self._reached[place] = self._reached[place] * self._decay + 1.0

    def rates(self, prior: Sequence[float], weight: float) -> list[float]:
        """Probability of each position to be accepted once it is reached, shrunk towards ``prior``."""
        known = zip(self._accepted, self._reached, prior, strict=False)
        rates = [(accepted + weight * belief) / (reached + weight) for accepted, reached, belief in known]
        return [*rates, *prior[len(rates) :]]


class _EstimateRatio:
    """Accepted tokens over the tokens that the drafter's own estimates promised, both decayed."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._accepted = 0.0
        self._estimated = 0.0

    def add(self, accepted: int, estimated: float) -> None:
        self._accepted = self._decay * self._accepted + accepted
        self._estimated = self._decay * self._estimated + estimated

    def ratio(self, prior: float, weight: float) -> float:
        return (self._accepted + weight * prior) / (self._estimated + weight)


class _Outcomes:
    """Both kinds of counts, for the pool or for one request."""

    def __init__(self, decay: float) -> None:
        self.positions = _Positions(decay)
        self.estimates = _EstimateRatio(decay)


class RequestOutcomes(_Outcomes):
    """The outcomes of one drafter's drafts for one request."""

    def __init__(self) -> None:
        super().__init__(_REQUEST_DECAY)


class AcceptanceEstimates:
    """Estimates for one drafter, pooled over all requests and refined by each request's own outcomes."""

    def __init__(self, prior: float) -> None:
        """``prior`` is the probability that a token is accepted after those before it, until outcomes are known."""
        self._prior = prior
        self._pool = _Outcomes(_POOL_DECAY)

    def probs(
        self, own: RequestOutcomes | None, length: int, chances: Sequence[float] | None = None
    ) -> AcceptanceProbs:
        """Acceptance probabilities [length] of a draft for a request with the outcomes ``own``.

        ``chances`` are the drafter's own estimates of the same, if it gives any. They are scaled by the ratio of
        accepted to estimated tokens so far. Without them the acceptance rate at each position counts.
        """
        if chances is not None:
            ratio = self._pool.estimates.ratio(1.0, _ESTIMATE_PRIOR_WEIGHT)
            if own is not None:
                ratio = own.estimates.ratio(ratio, _ESTIMATE_PRIOR_WEIGHT)
            return [min(chance * ratio, most) for chance, most in zip(chances, _HIGHEST_PROBS[:length], strict=False)]
        rates = self._pool.positions.rates([self._prior] * length, _POOL_PRIOR_WEIGHT)
        if own is not None:
            rates = own.positions.rates(rates, _REQUEST_PRIOR_WEIGHT)
        return list(accumulate((min(rate, _HIGHEST_RATE) for rate in rates), operator.mul))

    def observe(self, own: RequestOutcomes, accepted: int, length: int, chances: Sequence[float] | None = None) -> None:
        """Learn that of a draft of ``length`` tokens for a request the first ``accepted`` were accepted."""
        for outcomes in (self._pool, own):
            if chances is None:
                outcomes.positions.add(accepted, length)
            else:
                outcomes.estimates.add(accepted, float(sum(chances[:length])))
