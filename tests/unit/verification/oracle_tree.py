"""The expected results of tree verification for one given tree, by formula: plain recursion and products, no draws.

This module shares no code with the functions that it checks. An outcome is (accepted nodes, the token after them).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.verification.oracle import Row

Outcomes = dict[tuple[tuple[int, ...], int], float]


def traversal_outcomes(
    parents: Sequence[int],
    token_ids: Sequence[int],
    target_rows: Sequence[Row],
    draft_rows: Sequence[Row],
    *,
    with_replacement: bool,
) -> Outcomes:
    """The outcome probabilities of traversal verification.

    ``target_rows`` and ``draft_rows`` have 1 + num_nodes rows [vocab]: after the root, then after each node.
    """
    outcomes: Outcomes = {}

    def enter(path: tuple[int, ...], reach: float, alive: float) -> float:
        """Verify the subtree of ``path``'s last node; return the probability that no node of it is accepted."""
        node = path[-1] if path else -1
        target_probs, draft_probs = np.array(target_rows[node + 1]), np.array(draft_rows[node + 1])
        for child in (child for child, parent in enumerate(parents) if parent == node):
            token_id = token_ids[child]
            ratio = reach * target_probs[token_id] / draft_probs[token_id]
            alive = enter((*path, child), min(1.0, float(ratio)), alive)
            rest = np.maximum(reach * target_probs - draft_probs, 0.0)
            mass = float(rest.sum())
            if mass > 0.0:
                target_probs = rest / mass
            reach = mass / (mass + 1.0 - reach) if reach < 1.0 else 1.0
            if not with_replacement:
                draft_probs[token_id] = 0.0
                if draft_probs.any():
                    draft_probs /= draft_probs.sum()
        for token_id, prob in enumerate(target_probs):
            if alive * reach * prob > 0.0:
                outcomes[path, token_id] = float(alive * reach * prob)
        return alive * (1.0 - reach)

    enter((), 1.0, 1.0)
    return outcomes


def recursive_outcomes(
    parents: Sequence[int],
    token_ids: Sequence[int],
    target_rows: Sequence[Row],
    draft_rows: Sequence[Row] | None,
    *,
    with_replacement: bool,
) -> Outcomes:
    """The outcome probabilities of rejection sampling child by child, rows as above; None means point masses."""
    outcomes: Outcomes = {}

    def enter(path: tuple[int, ...], alive: float) -> None:
        node = path[-1] if path else -1
        target_probs = np.array(target_rows[node + 1])
        draft_probs = None if draft_rows is None else np.array(draft_rows[node + 1])
        for child in (child for child, parent in enumerate(parents) if parent == node):
            token_id = token_ids[child]
            own = np.eye(len(target_probs))[token_id] if draft_probs is None else draft_probs
            chance = min(1.0, float(target_probs[token_id] / own[token_id]))
            if alive * chance > 0.0:
                enter((*path, child), alive * chance)
            alive *= 1.0 - chance
            rest = np.maximum(target_probs - own, 0.0)
            if rest.any():
                target_probs = rest / rest.sum()
            if draft_probs is not None and not with_replacement:
                draft_probs[token_id] = 0.0
                if draft_probs.any():
                    draft_probs /= draft_probs.sum()
        for token_id, prob in enumerate(target_probs):
            if alive * prob > 0.0:
                outcomes[path, token_id] = float(alive * prob)

    enter((), 1.0)
    return outcomes
