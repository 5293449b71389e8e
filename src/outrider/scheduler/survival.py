"""How far a draft will be accepted: estimates per drafter and per request, from outcomes so far. No clock, no tensors.

The *survival* of a draft's token is the chance that it and all before it are accepted; it never rises along a draft.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate

Survival = Sequence[float]
"""Chances, each at most the one before it."""

_POOL_MEMORY = 0.99
_OWN_MEMORY = 0.9
"""What an outcome weighs after one more of the same kind; so a request's own last ten count."""
_POOL_WEIGHT = 3.0
_OWN_WEIGHT = 3.0
"""So many outcomes' worth of what was believed before: the prior for the pool, the pool for a request."""
_PROMISE_WEIGHT = 1.0
"""The same in promised tokens."""
_MOST_CERTAIN = 0.99
_CERTAIN = [_MOST_CERTAIN ** (place + 1) for place in range(256)]


class _Positions:
    """Decayed counts of drafts that reached each position, and of those accepted there."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._accepted: list[float] = []
        self._reached: list[float] = []

    def add(self, accepted: int, length: int) -> None:
        """A draft of ``length`` tokens of which the first ``accepted`` came true."""
        reached = min(accepted + 1, length)
        more = reached - len(self._reached)
        if more > 0:
            self._accepted += [0.0] * more
            self._reached += [0.0] * more
        # Only what is reached fades, so that late positions are not forgotten while drafts are short.
        for place in range(reached):
            self._accepted[place] = self._accepted[place] * self._memory + (place < accepted)
            self._reached[place] = self._reached[place] * self._memory + 1.0

    def rates(self, believed: Sequence[float], weight: float) -> list[float]:
        """Chance of each position, given that it is reached, shrunk towards ``believed``."""
        known = zip(self._accepted, self._reached, believed, strict=False)
        rates = [(accepted + weight * belief) / (reached + weight) for accepted, reached, belief in known]
        return [*rates, *believed[len(rates) :]]


class _Promises:
    """Decayed sums of what drafts with chances of their own promised, and of what was accepted."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._accepted = 0.0
        self._promised = 0.0

    def add(self, accepted: int, promised: float) -> None:
        self._accepted = self._memory * self._accepted + accepted
        self._promised = self._memory * self._promised + promised

    def kept(self, believed: float, weight: float) -> float:
        return (self._accepted + weight * believed) / (self._promised + weight)


class SurvivalEstimates:
    """Estimates for one drafter, shared by all requests and refined by each request's own outcomes."""

    def __init__(self, prior: float) -> None:
        """``prior`` is the chance of a token to be accepted after those before it, until something is known."""
        self._prior = prior
        self._pool = _Positions(_POOL_MEMORY)
        self._pool_promises = _Promises(_POOL_MEMORY)
        self._own: dict[str, tuple[_Positions, _Promises]] = {}

    def survival(self, request_id: str, length: int, chances: Sequence[float] | None = None) -> Survival:
        """Survival [length] of a draft for the request.

        ``chances``, where the drafter gives them, are its own estimate of the same, and are corrected by how such
        estimates were borne out; without them the outcomes at each position count.
        """
        own = self._own.get(request_id)
        if chances is not None:
            kept = self._pool_promises.kept(1.0, _PROMISE_WEIGHT)
            if own is not None:
                kept = own[1].kept(kept, _PROMISE_WEIGHT)
            return [min(chance * kept, certain) for chance, certain in zip(chances, _CERTAIN[:length], strict=False)]
        rates = self._pool.rates([self._prior] * length, _POOL_WEIGHT)
        if own is not None:
            rates = own[0].rates(rates, _OWN_WEIGHT)
        return list(accumulate((min(rate, _MOST_CERTAIN) for rate in rates), operator.mul))

    def observe(self, request_id: str, accepted: int, length: int, chances: Sequence[float] | None = None) -> None:
        """Of a draft of ``length`` tokens the first ``accepted`` were what came."""
        own = self._own.get(request_id)
        if own is None:
            own = self._own[request_id] = (_Positions(_OWN_MEMORY), _Promises(_OWN_MEMORY))
        if chances is None:
            self._pool.add(accepted, length)
            own[0].add(accepted, length)
        else:
            promised = float(sum(chances[:length]))
            self._pool_promises.add(accepted, promised)
            own[1].add(accepted, promised)

    def forget(self, request_id: str) -> None:
        """Drop what is known of one request; the pool keeps it."""
        self._own.pop(request_id, None)
