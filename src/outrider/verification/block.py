"""Block verification (Sun et al. 2024, arXiv 2403.10444): drafts drawn one after another are judged together.

With target distribution P and draft distribution Q, p_0 = 1 and p_i = min(1, p_{i-1} P(x_i) / Q(x_i)) along the drafts
x_1 ... x_K: the step accepts the longest prefix whose own uniform number is below h_i, where

    D_i = sum over x of (p_i P(x | x_1..x_i) - Q(x | x_1..x_i))+
    h_i = D_i / (D_i + 1 - p_i) for i < K,   h_K = p_K

and after tau < K drafts the next token has the distribution (p_tau P - Q)+ normalised, after K that of P. What is
emitted then has the target's own distribution, and prefix i is accepted with probability p_i, at least what token by
token would accept. A decision here depends on drafts that are thrown away, so their noise must not come back: see
``Noise.at_step``.
"""

from __future__ import annotations

import math

import numpy as np

from outrider.sampling.noise import Noise, Purpose, Weights
from outrider.verification.base import Proposal, TargetProbs, VerifyResult
from outrider.verification.standard import verify_standard


def verify_block(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> VerifyResult:
    """Accept a prefix of ``proposal`` and draw one token more.

    ``position`` is the absolute position of the first draft. ``target_probs_at(i)`` is asked at most once per place, in
    order, until a draft that the target rules out. Point masses gain nothing from blocks and go to ``verify_standard``.
    """
    if proposal.probs is None or not len(proposal):
        return verify_standard(proposal, target_probs_at, noise, position)
    num_drafts, probs = len(proposal), proposal.probs
    rows: list[Weights] = []
    log_reach = [0.0]  # log p_i; a sum, so that a product of many small ratios does not end at zero
    for place, token_id in enumerate(proposal.token_ids):
        rows.append(target_probs_at(place))
        target_prob = float(rows[place][token_id])
        if not target_prob > 0.0:
            break
        log_reach.append(min(0.0, log_reach[place] + math.log(target_prob) - math.log(float(probs[place][token_id]))))

    for accepted in range(len(log_reach) - 1, 0, -1):
        reach = math.exp(log_reach[accepted])
        uniform = noise.uniform(position + accepted - 1, Purpose.ACCEPT)
        if accepted == num_drafts:
            if uniform * 1.0 < reach:
                bonus = noise.draw(target_probs_at(num_drafts), position + num_drafts, Purpose.BONUS)
                return VerifyResult(num_drafts, bonus, "bonus")
            continue
        weights = excess(rows[accepted], probs[accepted], reach)
        mass = float(weights.sum())
        if reach == 1.0 or uniform * (mass + 1.0 - reach) < mass:
            return _recovered(accepted, weights, rows[accepted], noise, position)
    return _recovered(0, excess(rows[0], probs[0], 1.0), rows[0], noise, position)


def excess(target_probs: Weights, draft_probs: Weights, reach: float) -> Weights:
    """Weights [vocab] in float64, not normalised: (reach P - Q)+."""
    weights = np.multiply(target_probs, reach, dtype=np.float64)
    weights -= draft_probs
    np.maximum(weights, 0.0, out=weights)
    return weights


def _recovered(accepted: int, weights: Weights, target_probs: Weights, noise: Noise, position: int) -> VerifyResult:
    # Where rounding leaves no mass at all, P and Q are equal and the target's own distribution is the answer.
    token_id = noise.draw(weights if weights.any() else target_probs, position + accepted, Purpose.RECOVER)
    return VerifyResult(accepted, token_id, "recovered")
