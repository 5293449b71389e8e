"""Rejection sampling, token by token (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318).

p is the target's distribution at the position of draft x, and q the draft's. Draft x is accepted with probability
min(1, p(x) / q(x)). In place of the first rejected draft, the recovered token is drawn from the residual (p - q)_+,
normalised. The emitted tokens then have the target's distribution.
"""

from __future__ import annotations

import numpy as np

from outrider.sampling.noise import Noise, Purpose, Weights
from outrider.verification.base import Proposal, TargetProbs, VerifyResult


def residual(target_probs: Weights, draft_probs: Weights) -> Weights:
    """The weights (p - q)_+ [vocab] of the recovered token, in float64 and not normalised.

    If rounding leaves no mass, p and q are equal, and the result is ``target_probs``.
    """
    weights = np.subtract(target_probs, draft_probs, dtype=np.float64)
    np.maximum(weights, 0.0, out=weights)
    return weights if weights.any() else target_probs


def verify_standard(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> VerifyResult:
    """Accept a prefix of ``proposal`` and draw one more token.

    ``position`` is the absolute position of the first draft. The token after ``a`` accepted drafts has position
    ``position + a``. ``target_probs_at(i)`` is called once per row, in order, up to the row of the last emitted token.
    A point mass x has q(x) = 1. It is accepted with probability p(x), and the recovered token is drawn from p without
    x.
    """
    if not len(proposal):
        return VerifyResult(0, noise.draw(target_probs_at(0), position, Purpose.TARGET), "target")
    for place, token_id in enumerate(proposal.token_ids):
        target_probs = target_probs_at(place)
        draft_prob = 1.0 if proposal.probs is None else float(proposal.probs[place][token_id])
        # The comparison is strict, so that a token of target probability 0 is never accepted.
        if noise.uniform(position + place, Purpose.ACCEPT) * draft_prob < float(target_probs[token_id]):
            continue
        draft_probs = one_hot(target_probs, token_id) if proposal.probs is None else proposal.probs[place]
        weights = residual(target_probs, draft_probs)
        return VerifyResult(place, noise.draw(weights, position + place, Purpose.RECOVER), "recovered")
    num_drafts = len(proposal)
    bonus = noise.draw(target_probs_at(num_drafts), position + num_drafts, Purpose.BONUS)
    return VerifyResult(num_drafts, bonus, "bonus")


def one_hot(like: Weights, token_id: int) -> Weights:
    """The distribution of a point mass at ``token_id``, in the shape and type of ``like`` [vocab]."""
    probs = np.zeros_like(like)
    probs[token_id] = 1.0
    return probs
