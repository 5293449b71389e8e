"""Verification of trees: which path from the root down is accepted, and the one token after it.

Three rules, as for chains. ``verify_tree_match`` follows the target's own tokens. ``verify_recursive`` is rejection
sampling child by child (Miao et al. 2023, arXiv 2305.09781; without replacement Jeon et al. 2024, arXiv 2402.14160).
``verify_traversal`` judges from the leaves up (arXiv 2505.12398): with target distribution P_u and draft distribution
Q_u after node u, and p = 1 at the root, along first children

    p_v = min(1, p_u P_u(v) / Q_u(v))

The first path's leaf v is accepted, and with it the path, with probability p_v. If it is not, v is removed and

    D = sum of (p_u P_u - Q_u)+,   p_u <- D / (D + 1 - p_u),   P_u <- (p_u P_u - Q_u)+ / D

with p_u on the right as it was before; without replacement Q_u(v) <- 0 and Q_u is normalised again. Then the next
sibling, with its first children, makes the first path. The token after the accepted node u has the distribution P_u as
it then is. On a chain this is block verification, number for number.
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
    """The place of each node among those of its depth: what its noise is keyed by beside its position."""
    counts: dict[int, int] = {}
    found = []
    for depth in depths(parents):
        found.append(counts.get(depth, 0))
        counts[depth] = found[-1] + 1
    return found


def verify_tree_match(proposal: Proposal, target_token: TargetToken) -> VerifyResult:
    """Walk from the root to the child that is the target's own token, as long as there is one; emit that token last.

    ``target_token(row)`` is asked once for each node of the path. Siblings must differ.
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
    """The target's sampled token after each node; the same noise as plain sampling at that absolute position.

    ``position`` is the absolute position of the root's children.
    """
    return tokens_drawn_by(lambda row, at: noise.draw(target_probs_at(row), at, Purpose.TARGET), proposal, position)


def tokens_drawn_by(draw: Callable[[int, int], int], proposal: Proposal, position: int) -> TargetToken:
    """``sampled_tree_tokens`` where ``draw(row, at)`` draws by that row's distribution with the noise of position
    ``at``."""
    if proposal.parents is None:
        return lambda row: draw(row, position + row)
    depth = [0, *depths(proposal.parents)]
    return lambda row: draw(row, position + depth[row])


def verify_recursive(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> VerifyResult:
    """Try the children of each node in order; go on below the first that is accepted, else draw from what is left.

    ``position`` is the absolute position of the root's children. ``target_probs_at(row)`` is asked once for each node
    of the path. A point mass counts as q = 1 at its token.
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
            # Strict, so that a token that the target rules out is never accepted.
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
    """Accept a path of ``proposal``, whose distributions must have come with it, and draw one token more.

    ``position`` is the absolute position of the root's children. ``target_probs_at(row)`` is asked at most once for
    each node, and only for nodes that the target has not ruled out.
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
    """A proposal by its nodes; node -1 is the root, and node i owns ``children[i + 1]``."""

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
        """Drafts from the root to ``node``."""
        return self._depths[node + 1]

    def result(self, node: int, token_id: int, *, rejected: bool) -> VerifyResult:
        """The path to ``node`` and ``token_id`` after it."""
        path = tuple(path_to(self.parents, node))
        return VerifyResult(len(path), token_id, _source(self.proposal, rejected=rejected), path)


class _Left:
    """What is left of the draft's distribution after ``node`` once some children were tried; None for point masses."""

    def __init__(self, tree: _Tree, node: int) -> None:
        proposal, children = tree.proposal, tree.children[node + 1]
        self._removes = not proposal.with_replacement
        self.draft_probs: Weights | None = None
        if proposal.probs is not None and children:
            self.draft_probs = proposal.probs[children[0]]

    def residual(self, target_probs: Weights, reach: float, token_id: int) -> Weights:
        """(reach P - Q)+ [vocab] in float64, not normalised, ``token_id`` having been rejected."""
        if self.draft_probs is not None:
            return excess(target_probs, self.draft_probs, reach)
        weights = np.array(target_probs, dtype=np.float64)
        weights[token_id] = 0.0
        return weights

    def remove(self, token_id: int) -> None:
        """The next sibling was drawn from the rest of the distribution, unless they were drawn with replacement."""
        if self.draft_probs is None or not self._removes:
            return
        rest = np.array(self.draft_probs, dtype=np.float64)
        rest[token_id] = 0.0
        self.draft_probs = _normalised(rest, rest)


class _Node:
    """A node of the first path: its p = bound / scale, and P and Q after it as its rejected children left them."""

    def __init__(self, node: int, log_reach: float, tree: _Tree) -> None:
        self.node = node
        self.tried = 0
        self.weights: Weights | None = None  # P after the node, up to a factor; asked of the target when needed
        self._tree = tree
        self._left = _Left(tree, node)
        self._log_reach = log_reach  # a sum of logarithms, so that a product of small ratios does not end at zero
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
        # With all of p left (p = 1), what remains is accepted for certain: D / D. No mass means no chance otherwise.
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
    """``weights`` [vocab] divided by their sum; where rounding leaves no mass at all, ``otherwise``."""
    total = float(weights.sum())
    return weights / total if total > 0.0 else otherwise
