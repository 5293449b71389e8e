"""Five properties of the standard verifier that are checked directly, not through a distribution.

Each check takes the parts under audit and returns (passed, a text with the measured values).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from outrider.audit.cases import Build
from outrider.sampling.noise import Purpose, Weights
from outrider.sampling.rng import KeyedNoise
from outrider.verification.base import Proposal, VerifyResult

MONTE_CARLO_DRAWS = 50_000
MONTE_CARLO_FALSE_ALARM = 1e-6
_SMALLEST, _LARGEST = 2.0**-53, 1.0 - 2.0**-53
_NUM_PAIRS = 200


@dataclass(frozen=True)
class Property:
    """A property, whether it holds, and the measured values."""

    name: str
    passed: bool
    detail: str


@dataclass
class FixedNoise:
    """``Noise`` whose uniform numbers are all ``u``. Draws return the largest weight; ``drawn`` records the weights."""

    u: float
    drawn: list[tuple[Purpose, Weights]] = field(default_factory=list)

    def at_step(self, start: int) -> FixedNoise:
        """The same noise for every step."""
        return self

    def uniform(self, position: int, purpose: Purpose, *, branch: int = 0) -> float:
        """``u`` for every key."""
        return self.u

    def draw(self, weights: Weights, position: int, purpose: Purpose, *, branch: int = 0) -> int:
        """The index of the largest of ``weights`` [vocab]."""
        self.drawn.append((purpose, weights))
        return int(np.argmax(weights))


def check_properties(build: Build) -> list[Property]:
    """The five properties of ``build.standard``, in the order of docs/correctness.md."""
    checks: tuple[Callable[[Build], tuple[bool, str]], ...] = (
        deterministic_acceptance,
        threshold_precision,
        residual_normalisation,
        bonus_token,
        monte_carlo,
    )
    return [Property(check.__name__.replace("_", " "), *check(build)) for check in checks]


def deterministic_acceptance(build: Build) -> tuple[bool, str]:
    """If p(x) >= q(x) > 0, x is accepted for every uniform number. If p(x) = 0, it is accepted for none."""
    wrong = checked = 0
    for target_probs, draft_probs in _pairs():
        for token_id in np.flatnonzero(draft_probs):
            target_prob, draft_prob = target_probs[token_id], draft_probs[token_id]
            if 0.0 < target_prob < draft_prob:
                continue
            for u in (_SMALLEST, 0.5, _LARGEST):
                accepted = _verify_one(build, target_probs, draft_probs, int(token_id), FixedNoise(u)).num_accepted
                wrong += accepted != int(target_prob > 0.0)
                checked += 1
    return wrong == 0, f"{wrong} wrong of {checked} decisions with u = 2^-53, 1/2 and 1 - 2^-53"


def threshold_precision(build: Build) -> tuple[bool, str]:
    """If p(x) / q(x) = r < 1, x is accepted for u just below r and rejected for u just above r, and for u q = p."""
    wrong = checked = 0
    for target_probs, draft_probs in _pairs():
        for token_id in np.flatnonzero((target_probs > 0.0) & (target_probs < draft_probs)):
            ratio = float(target_probs[token_id] / draft_probs[token_id])
            for u, expected in ((ratio * (1 - 2.0**-50), 1), (ratio * (1 + 2.0**-50), 0)):
                noise = FixedNoise(u)
                wrong += _verify_one(build, target_probs, draft_probs, int(token_id), noise).num_accepted != expected
                checked += 1
    at_threshold = _verify_one(build, np.array([0.25, 0.75]), np.array([0.5, 0.5]), 0, FixedNoise(0.5)).num_accepted
    wrong += at_threshold != 0
    return wrong == 0, f"{wrong} wrong of {checked + 1} decisions within a factor 1 +- 2^-50 of the threshold"


def residual_normalisation(build: Build) -> tuple[bool, str]:
    """The distribution of a recovered token sums to one and is zero for all tokens with q >= p."""
    worst_sum = leaked = 0.0
    checked = 0
    for target_probs, draft_probs in _pairs():
        for token_id in np.flatnonzero(target_probs < draft_probs):
            noise = FixedNoise(_LARGEST)
            if _verify_one(build, target_probs, draft_probs, int(token_id), noise).num_accepted:
                continue
            _, weights = noise.drawn[-1]
            recovered = np.asarray(weights, dtype=np.float64) / float(weights.sum())
            rejected_mass = 1.0 - float(np.minimum(target_probs, draft_probs).sum())
            errors = (1.0 - float(recovered.sum()), 1.0 - float(weights.sum()) / rejected_mass)
            worst_sum = max(worst_sum, *(abs(error) for error in errors))
            leaked = max(leaked, float(recovered[draft_probs >= target_probs].max(initial=0.0)))
            checked += 1
    passed = checked > 0 and worst_sum < 1e-9 and leaked == 0.0
    return passed, f"{checked} residuals: sum off by at most {worst_sum:.1e}, largest entry where q >= p {leaked:.1e}"


def bonus_token(build: Build) -> tuple[bool, str]:
    """If all K = 3 drafts are accepted, one target pass gives four tokens, and each of its four rows is used once."""
    rows = np.random.default_rng(3).dirichlet(np.ones(5), size=4)
    token_ids = tuple(int(np.argmax(row)) for row in rows[:3])
    asked: list[int] = []

    def target_probs_at(place: int) -> Weights:
        asked.append(place)
        return np.asarray(rows[place])

    noise = FixedNoise(_LARGEST)
    result = build.standard(Proposal(token_ids, tuple(rows[:3])), target_probs_at, noise, 10)
    num_tokens = result.num_accepted + 1
    passed = (
        result == VerifyResult(3, int(np.argmax(rows[3])), "bonus")
        and asked == [0, 1, 2, 3]
        and [purpose for purpose, _ in noise.drawn] == [Purpose.BONUS]
    )
    return passed, f"K = 3: {num_tokens} tokens, the last {result.source!r}, from target rows {asked}"


def monte_carlo(build: Build) -> tuple[bool, str]:
    """50,000 tokens drawn with ``KeyedNoise``, with very different p and q, have the target's distribution.

    The bound comes from the inequality of Bretagnolle, Huber and Carol for the L1 distance of multinomial frequencies,
    P(|f - p|_1 >= e) <= 2**vocab exp(-n e**2 / 2), solved for e at the false-alarm rate. TV is half of the L1 distance.
    """
    target_probs = np.array([0.35, 0.25, 0.2, 0.1, 0.06, 0.04])
    draft_probs = np.array([0.02, 0.08, 0.1, 0.2, 0.25, 0.35])
    num_drafts = 1
    noise = KeyedNoise(2026)
    counts: NDArray[np.int64] = np.zeros(target_probs.size, dtype=np.int64)
    position = 0
    while position < MONTE_CARLO_DRAWS:
        places = range(position, position + num_drafts)
        token_ids = tuple(noise.draw(draft_probs, place, Purpose.DRAFT) for place in places)
        proposal = Proposal(token_ids, (draft_probs,) * num_drafts)
        result = build.standard(proposal, lambda place: target_probs, noise, position)
        emitted: Sequence[int] = (*token_ids[: result.num_accepted], result.token_id)
        for token_id in emitted[: MONTE_CARLO_DRAWS - position]:
            counts[token_id] += 1
        position += len(emitted)
    distance = 0.5 * float(np.abs(counts / MONTE_CARLO_DRAWS - target_probs).sum())
    log_odds = target_probs.size * math.log(2.0) - math.log(MONTE_CARLO_FALSE_ALARM)
    bound = 0.5 * math.sqrt(2.0 * log_odds / MONTE_CARLO_DRAWS)
    apart = 0.5 * float(np.abs(target_probs - draft_probs).sum())
    return distance < bound, (
        f"TV {distance:.4f} over {MONTE_CARLO_DRAWS:,} draws, bound {bound:.4f} at false-alarm rate "
        f"{MONTE_CARLO_FALSE_ALARM:g}; draft and target are {apart:.2f} apart"
    )


def _pairs() -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Pairs (target_probs, draft_probs) [5]: in turn random, with a zero in p, with a zero in q, and equal."""
    rng = np.random.default_rng(11)
    pairs = []
    for number in range(_NUM_PAIRS):
        target_probs, draft_probs = rng.dirichlet(np.full(5, 0.7), size=2)
        if number % 4 == 1:
            target_probs[rng.integers(5)] = 0.0
        elif number % 4 == 2:
            draft_probs[rng.integers(5)] = 0.0
        elif number % 4 == 3:
            draft_probs = target_probs
        pairs.append((target_probs / target_probs.sum(), draft_probs / draft_probs.sum()))
    return pairs


def _verify_one(
    build: Build, target_probs: Weights, draft_probs: Weights, token_id: int, noise: FixedNoise
) -> VerifyResult:
    """Verify one draft ``token_id`` with ``build.standard``. Every row of the target is ``target_probs``."""
    return build.standard(Proposal((token_id,), (draft_probs,)), lambda place: target_probs, noise, 10)
