"""Rejection sampling, token by token (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318).

With target distribution p and draft distribution q at the place of draft x: accept x with probability min(1, p(x) /
q(x)); in place of the first rejected draft draw from (p - q)_+ normalised. The emitted tokens then have the target's
own distribution.
"""

from __future__ import annotations

import numpy as np

from outrider.sampling.noise import Noise, Purpose, Weights
from outrider.verification.base import Proposal, TargetProbs, VerifyResult


def residual(target_probs: Weights, draft_probs: Weights) -> Weights:
    """Weights [vocab], float64 and not normalised, of the token that replaces a rejected draft: (p - q)_+.

    Where rounding leaves no mass at all, p and q are equal and the target's own distribution is the answer.
    """
    weights = np.subtract(target_probs, draft_probs, dtype=np.float64)
    np.maximum(weights, 0.0, out=weights)
    return weights if weights.any() else target_probs


def verify_standard(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> VerifyResult:
    """Accept a prefix of ``proposal`` and draw one token more.

    ``position`` is the absolute position of the first draft; the token emitted after ``a`` accepted drafts stands at
    ``position + a``. ``target_probs_at(i)`` is asked once per place, in order, up to the one where the step ends. A
    point mass counts as q = 1 at its token: accepted with probability p(x), replaced from p without x.
    """
    if not len(proposal):
        return VerifyResult(0, noise.draw(target_probs_at(0), position, Purpose.TARGET), "target")
    for place, token_id in enumerate(proposal.token_ids):
        target_probs = target_probs_at(place)
        draft_prob = 1.0 if proposal.probs is None else float(proposal.probs[place][token_id])
        # Strict, so that a token that the target rules out is never accepted.
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
