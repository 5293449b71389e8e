"""The parts of a decode step with trees: a draft function that follows the contract, and the real verifiers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outrider.sampling.noise import Noise, Purpose, Weights
from outrider.verification.base import Proposal, TargetProbs, TargetToken, VerifyResult, depths
from outrider.verification.tree import (
    branches,
    sampled_tree_tokens,
    verify_recursive,
    verify_traversal,
    verify_tree_match,
)

if TYPE_CHECKING:
    from outrider.audit.cases import DraftTask

Topology = tuple[int, ...]
"""The parent of each node, level by level; -1 is the root."""


def draft_tree(request: DraftTask, topology: Topology, noise: Noise) -> Proposal:
    """Draft a tree of shape ``topology``, as far as ``request.max_tokens`` and the distribution's tokens allow.

    With ``stop_below``, a node gets no children if its probability is below it or below that of a sibling. Both are
    decided after the node's level is drawn and before its children are drawn.
    """
    position, unlikely = len(request.context), request.stop_below
    names: list[int] = []  # for each drafted node, its index in the topology
    parents: list[int] = []
    token_ids: list[int] = []
    rows: list[Weights] = []
    left: dict[int, Weights] = {}
    for node, (parent, depth, branch) in enumerate(zip(topology, depths(topology), branches(topology), strict=True)):
        if depth > request.max_tokens or (parent >= 0 and parent not in names):
            continue
        above = names.index(parent) if parent >= 0 else -1
        if unlikely and above >= 0:
            siblings = [i for i, other in enumerate(parents) if other == parents[above]]
            chance = rows[above][token_ids[above]]
            if chance < unlikely or chance < max(rows[i][token_ids[i]] for i in siblings):
                continue
        drafted: list[int] = []
        walk = above
        while walk >= 0:
            drafted.insert(0, token_ids[walk])
            walk = parents[walk]
        row = request.probs((*request.context, *drafted))
        rest = left.setdefault(above, row)
        if not rest.any():
            continue
        if request.kind == "point mass":
            token_id = int(np.argmax(rest))
        elif request.kind == "coupled":
            token_id = noise.draw(rest, position + depth - 1, Purpose.TARGET)
        else:
            token_id = noise.draw(rest, position + depth - 1, Purpose.DRAFT, branch=branch)
        if request.kind != "with replacement":
            rest = rest.copy()
            rest[token_id] = 0.0
            left[above] = rest
        names.append(node)
        parents.append(above)
        token_ids.append(token_id)
        rows.append(row)
    sampled = request.kind in ("sampled", "with replacement")
    return Proposal(
        tuple(token_ids),
        tuple(rows) if sampled else None,
        parents=tuple(parents),
        with_replacement=request.kind == "with replacement",
    )


TreeDrafter = Callable[["DraftTask", Topology, Noise], Proposal]
TreeVerifier = Callable[[Proposal, TargetProbs, Noise, int], VerifyResult]
TreeMatch = Callable[[Proposal, TargetToken], VerifyResult]


@dataclass(frozen=True)
class TreeBuild:
    """The parts under audit. ``row_of(proposal, row)`` is the row of the target's pass that a verifier gets for row."""

    draft: TreeDrafter = draft_tree
    traversal: TreeVerifier = verify_traversal
    recursive: TreeVerifier = verify_recursive
    match: TreeMatch = verify_tree_match
    target_tokens: Callable[[Proposal, TargetProbs, Noise, int], TargetToken] = sampled_tree_tokens
    row_of: Callable[[Proposal, int], int] = lambda proposal, row: row
