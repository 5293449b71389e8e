"""Tree verification: which path from the root is accepted, and the one token after it.

There are three verifiers, as for chains:

- ``verify_tree_match`` follows the target's own tokens.
- ``verify_recursive`` is rejection sampling child by child (Miao et al. 2023, arXiv 2305.09781; drafts without
  replacement: Jeon et al. 2024, arXiv 2402.14160).
- ``verify_traversal`` verifies from the leaves to the root (arXiv 2505.12398).

Traversal: P_u is the target's distribution after node u, and Q_u the draft's. p is 1 at the root. Along first children,

    p_v = min(1, p_u P_u(v) / Q_u(v))

The leaf v of this path is accepted, with the whole path, with probability p_v. Otherwise v is removed, and its parent u
changes (the right-hand sides use the old p_u):

    D = sum of (p_u P_u - Q_u)+,   p_u <- D / (D + 1 - p_u),   P_u <- (p_u P_u - Q_u)+ / D

Without replacement, Q_u(v) is also set to 0 and Q_u is normalised. Then the path continues with the next sibling and
its first children. The token after the accepted node u is drawn from the current P_u. On a chain this is block
verification with the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from outrider.outputs import TokenSource
from outrider.sampling.noise import Noise, Purpose, Weights
from outrider.verification.base import Proposal, TargetProbs, TargetToken, VerifyResult, depths, path_to
from outrider.verification.block import excess
from outrider.verification.match import verify_match
from outrider.verification.standard import verify_standard


def branches(parents: Sequence[int]) -> list[int]:
    """The index of each node among the nodes of its depth. The node's noise is keyed by it and by the position."""
    counts: dict[int, int] = {}
    found = []
    for depth in depths(parents):
        found.append(counts.get(depth, 0))
        counts[depth] = found[-1] + 1
    return found


def verify_tree_match(proposal: Proposal, target_token: TargetToken) -> VerifyResult:
    """Accept the path of nodes that equal the target's own tokens, and emit the target's token after it.

    ``target_token(row)`` is called once for the root and once for each accepted node. Siblings must differ.
    """
    if proposal.parents is None:
        return verify_match(proposal.token_ids, target_token)
    children = {
        (parent, token_id): node
        for node, (parent, token_id) in enumerate(zip(proposal.parents, proposal.token_ids, strict=True))
    }
    inner = set(proposal.parents)
    path: list[int] = []
    while True:
        node = path[-1] if path else -1
        chosen = target_token(node + 1)
        child = children.get((node, chosen))
        if child is None:
            source = _source(proposal, rejected=node in inner)
            return VerifyResult(len(path), chosen, source, tuple(path))
        path.append(child)


def sampled_tree_tokens(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> TargetToken:
    """A function from a row to the target's sampled token, with the noise of plain sampling at that position.

    ``position`` is the absolute position of the root's children.
    """
    return tokens_drawn_by(lambda row, at: noise.draw(target_probs_at(row), at, Purpose.TARGET), proposal, position)


def tokens_drawn_by(draw: Callable[[int, int], int], proposal: Proposal, position: int) -> TargetToken:
    """A function from a row to the target's token. It calls ``draw(row, at)`` with the row's absolute position ``at``.

    ``position`` is the absolute position of the root's children.
    """
    if proposal.parents is None:
        return lambda row: draw(row, position + row)
    depth = [0, *depths(proposal.parents)]
    return lambda row: draw(row, position + depth[row])


def verify_recursive(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> VerifyResult:
    """Try the children of each node in order and descend to the first accepted one; else draw from the residual.

    ``position`` is the absolute position of the root's children. ``target_probs_at(row)`` is called once for the root
    and once for each accepted node. A point mass has q = 1 at its token.
    """
    if not len(proposal):
        return verify_standard(proposal, target_probs_at, noise, position)
    tree = _Tree(proposal)
    node = -1
    while True:
        depth, rejected, accepted = tree.depth(node), False, None
        target_probs = target_probs_at(node + 1)
        left = _Left(tree, node)
        for child in tree.children[node + 1]:
            token_id = proposal.token_ids[child]
            draft_prob = 1.0 if left.draft_probs is None else float(left.draft_probs[token_id])
            uniform = noise.uniform(position + depth, Purpose.ACCEPT, branch=tree.branch[child])
            # The comparison is strict, so that a token of target probability 0 is never accepted.
            if uniform * draft_prob < float(target_probs[token_id]):
                accepted = child
                break
            rejected = True
            target_probs = _normalised(left.residual(target_probs, 1.0, token_id), target_probs)
            left.remove(token_id)
        if accepted is None:
            purpose = Purpose.RECOVER if rejected else Purpose.BONUS
            token_id = noise.draw(target_probs, position + depth, purpose)
            return tree.result(node, token_id, rejected=rejected)
        node = accepted


def verify_traversal(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> VerifyResult:
    """Accept a path of ``proposal`` and draw one more token. Point masses go to ``verify_recursive``.

    ``position`` is the absolute position of the root's children. ``target_probs_at(row)`` is called at most once per
    node, and not for nodes that the target gives probability 0.
    """
    if proposal.probs is None or not len(proposal):
        return verify_recursive(proposal, target_probs_at, noise, position)
    tree = _Tree(proposal)
    path = [_Node(-1, 0.0, tree)]
    while True:
        current = path[-1]
        child = current.next_child(target_probs_at)
        if child is not None:
            path.append(_Node(child, current.log_reach_of(child), tree))
            continue
        depth = tree.depth(current.node)
        if current.node < 0 or current.accepts(noise, position + depth - 1):
            weights = current.weights if current.weights is not None else target_probs_at(current.node + 1)
            purpose = Purpose.RECOVER if current.tried else Purpose.BONUS
            token_id = noise.draw(weights, position + depth, purpose)
            return tree.result(current.node, token_id, rejected=current.tried > 0)
        path.pop()
        path[-1].reject(current.node)


class _Tree:
    """The nodes of a proposal. Node -1 is the root; ``children[i + 1]`` are the children of node i."""

    def __init__(self, proposal: Proposal) -> None:
        parents = range(-1, len(proposal) - 1) if proposal.parents is None else proposal.parents
        self.proposal = proposal
        self.parents: Sequence[int] = parents
        self.branch = branches(parents)
        self.children: list[list[int]] = [[] for _ in range(len(proposal) + 1)]
        for node, parent in enumerate(parents):
            self.children[parent + 1].append(node)
        self._depths = [0, *depths(parents)]

    def depth(self, node: int) -> int:
        """Number of drafts on the path from the root to ``node``."""
        return self._depths[node + 1]

    def result(self, node: int, token_id: int, *, rejected: bool) -> VerifyResult:
        """The result that accepts the path to ``node`` and emits ``token_id`` after it."""
        path = tuple(path_to(self.parents, node))
        return VerifyResult(len(path), token_id, _source(self.proposal, rejected=rejected), path)


class _Left:
    """The draft's distribution after ``node``, updated as children are rejected. None for point masses."""

    def __init__(self, tree: _Tree, node: int) -> None:
        proposal, children = tree.proposal, tree.children[node + 1]
        self._removes = not proposal.with_replacement
        self.draft_probs: Weights | None = None
        if proposal.probs is not None and children:
            self.draft_probs = proposal.probs[children[0]]

    def residual(self, target_probs: Weights, reach: float, token_id: int) -> Weights:
        """The weights (reach P - Q)+ [vocab] after ``token_id`` was rejected, in float64, not normalised."""
        if self.draft_probs is not None:
            return excess(target_probs, self.draft_probs, reach)
        weights = np.array(target_probs, dtype=np.float64)
        weights[token_id] = 0.0
        return weights

    def remove(self, token_id: int) -> None:
        """Remove a rejected token, because the next sibling was drawn without it. No change with replacement."""
        if self.draft_probs is None or not self._removes:
            return
        rest = np.array(self.draft_probs, dtype=np.float64)
        rest[token_id] = 0.0
        self.draft_probs = _normalised(rest, rest)


class _Node:
    """A node of the current path: p = bound / scale, and P and Q after it, updated as its children are rejected."""

    def __init__(self, node: int, log_reach: float, tree: _Tree) -> None:
        self.node = node
        self.tried = 0
        self.weights: Weights | None = None  # P after the node, up to a factor; computed when first needed
        self._tree = tree
        self._left = _Left(tree, node)
        self._log_reach = log_reach  # log p, because a product of many small ratios would underflow to zero
        self._bound = math.exp(log_reach)
        self._scale = 1.0

    def next_child(self, target_probs_at: TargetProbs) -> int | None:
        children = self._tree.children[self.node + 1]
        if self.tried == len(children) or self._log_reach == -math.inf:
            return None
        if self.weights is None:
            self.weights = target_probs_at(self.node + 1)
        return children[self.tried]

    def log_reach_of(self, child: int) -> float:
        token_id = self._tree.proposal.token_ids[child]
        assert self.weights is not None
        assert self._left.draft_probs is not None
        target_prob = float(self.weights[token_id])
        if self.tried:
            target_prob /= float(self.weights.sum())
        if not target_prob > 0.0:
            return -math.inf
        ratio = math.log(target_prob) - math.log(float(self._left.draft_probs[token_id]))
        return min(0.0, self._log_reach + ratio)

    def accepts(self, noise: Noise, position: int) -> bool:
        if self._log_reach == -math.inf:
            return False
        uniform = noise.uniform(position, Purpose.ACCEPT, branch=self._tree.branch[self.node])
        return (self.tried > 0 and self._log_reach == 0.0) or uniform * self._scale < self._bound

    def reject(self, child: int) -> None:
        token_id = self._tree.proposal.token_ids[child]
        assert self.weights is not None
        reach = math.exp(self._log_reach)
        target_probs = self.weights if not self.tried else _normalised(self.weights, self.weights)
        weights = self._left.residual(target_probs, reach, token_id)
        mass = float(weights.sum())
        if mass > 0.0:
            self.weights = weights
        # If p = 1, the new p is D / D = 1. If p < 1 and D = 0, the new p is 0.
        if reach < 1.0:
            self._bound, self._scale = mass, mass + 1.0 - reach
            self._log_reach = math.log(mass) - math.log(self._scale) if mass > 0.0 else -math.inf
        self._left.remove(token_id)
        self.tried += 1


def _source(proposal: Proposal, *, rejected: bool) -> TokenSource:
    if not len(proposal):
        return "target"
    return "recovered" if rejected else "bonus"


def _normalised(weights: Weights, otherwise: Weights) -> Weights:
    """``weights`` [vocab] divided by their sum; ``otherwise`` if the sum is 0."""
    total = float(weights.sum())
    return weights / total if total > 0.0 else otherwise
