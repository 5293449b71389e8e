"""Block verification (Sun et al. 2024, arXiv 2403.10444): all drafts of a step are verified together.

P is the target's distribution and Q the draft's. Let p_0 = 1 and p_i = min(1, p_{i-1} P(x_i) / Q(x_i)) along the
drafts x_1 ... x_K. Each prefix has a uniform number of its own. The step accepts the longest prefix i whose number is
below h_i, where

    D_i = sum over x of (p_i P(x | x_1..x_i) - Q(x | x_1..x_i))+
    h_i = D_i / (D_i + 1 - p_i) for i < K,   h_K = p_K

After tau < K accepted drafts, the next token is drawn from (p_tau P - Q)+, normalised. After K it is drawn from P. The
emitted tokens have the target's distribution. The first i drafts are accepted with probability p_i, which is at least
the probability with which token-by-token verification accepts them.

Which prefix is accepted depends on drafts that are then rejected. So the next step must not use their noise again; see
``Noise.at_step``.
"""

from __future__ import annotations

import math

import numpy as np

from outrider.sampling.noise import Noise, Purpose, Weights
from outrider.verification.base import Proposal, TargetProbs, VerifyResult
from outrider.verification.standard import verify_standard


def verify_block(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> VerifyResult:
    """Accept a prefix of ``proposal`` and draw one more token.

    ``position`` is the absolute position of the first draft. ``target_probs_at(i)`` is called at most once per row, in
    order, and not after a draft to which the target gives probability 0. Point masses gain nothing from block
    verification, so they go to ``verify_standard``.
    """
    if proposal.probs is None or not len(proposal):
        return verify_standard(proposal, target_probs_at, noise, position)
    num_drafts, probs = len(proposal), proposal.probs
    rows: list[Weights] = []
    log_reach = [0.0]  # log p_i, because a product of many small ratios would underflow to zero
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
    """The weights (reach P - Q)+ [vocab] in float64, not normalised."""
    weights = np.multiply(target_probs, reach, dtype=np.float64)
    weights -= draft_probs
    np.maximum(weights, 0.0, out=weights)
    return weights


def _recovered(accepted: int, weights: Weights, target_probs: Weights, noise: Noise, position: int) -> VerifyResult:
    # If rounding leaves no mass, P and Q are equal, and the residual is the target's distribution.
    token_id = noise.draw(weights if weights.any() else target_probs, position + accepted, Purpose.RECOVER)
    return VerifyResult(accepted, token_id, "recovered")
