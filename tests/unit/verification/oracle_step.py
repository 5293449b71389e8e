"""The expected results of one step of rejection sampling, by formula in float64."""

from __future__ import annotations

import numpy as np

from outrider.verification.oracle import Row, Table


def step_distribution(
    target: Table, draft: Table, context: tuple[int, ...], num_drafts: int
) -> dict[tuple[int, tuple[int, ...]], float]:
    """The distribution of (number accepted, tokens emitted) in one step of rejection sampling with K = ``num_drafts``.

    The probability that x_1 … x_a are accepted and y is recovered is the product of min(p_i, q_i)(x_i) for i <= a,
    times (p - q)_+(y) at position a + 1. If all drafts are accepted, the last factor is p(y) after the last draft.
    """
    outcomes: dict[tuple[int, tuple[int, ...]], float] = {}

    def extend(accepted: tuple[int, ...], reach: float) -> None:
        target_probs = target(context + accepted)
        if len(accepted) == num_drafts:
            final = target_probs
        else:
            draft_probs = draft(context + accepted)
            final = np.maximum(target_probs - draft_probs, 0.0)
            for token_id, prob in enumerate(np.minimum(target_probs, draft_probs)):
                if prob > 0.0:
                    extend((*accepted, token_id), reach * float(prob))
        for token_id, prob in enumerate(final):
            if prob > 0.0:
                outcomes[len(accepted), (*accepted, token_id)] = reach * float(prob)

    extend((), 1.0)
    return outcomes


def acceptance_probability(target_probs: Row, draft_probs: Row) -> float:
    """Probability that one draft is accepted: the sum of min(p, q), which is 1 - TV(p, q)."""
    return float(np.minimum(target_probs, draft_probs).sum())


def expected_tokens(acceptance: float, num_drafts: int) -> float:
    """Expected tokens per step, bonus included, when each draft is accepted with probability ``acceptance``.

    The value is (1 - alpha^(K+1)) / (1 - alpha), computed as the sum of alpha^i, which also covers alpha = 1.
    """
    return float(sum(acceptance**i for i in range(num_drafts + 1)))


def residual_probs(target_probs: Row, draft_probs: Row) -> Row:
    """The residual (p - q)_+ [vocab], normalised; p if p = q."""
    excess = np.maximum(target_probs - draft_probs, 0.0)
    return excess / excess.sum() if excess.sum() > 0.0 else target_probs
