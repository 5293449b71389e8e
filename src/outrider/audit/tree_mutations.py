"""Planted faults of trees: mistakes of drafters, verifiers and steps that chains cannot have."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from outrider.audit.cases import DraftTask
from outrider.audit.mutations import Mutation
from outrider.audit.tree_parts import Topology, TreeVerifier, draft_tree
from outrider.sampling.noise import Noise, Purpose, Uniform, Weights
from outrider.verification.base import Proposal, TargetProbs, TargetToken, VerifyResult, depths, path_to
from outrider.verification.tree import branches, verify_recursive, verify_tree_match

# --- the drafter ------------------------------------------------------------------------------------------------


def keep_nodes(proposal: Proposal, nodes: list[int]) -> Proposal:
    """``proposal`` with only ``nodes``, in that order. Parents must come before their children."""
    names = {-1: -1, **{node: name for name, node in enumerate(nodes)}}
    parents, probs = proposal.parents or (), proposal.probs
    return replace(
        proposal,
        token_ids=tuple(proposal.token_ids[node] for node in nodes),
        probs=None if probs is None else tuple(probs[node] for node in nodes),
        parents=tuple(names[parents[node]] for node in nodes),
    )


def _chance(proposal: Proposal, node: int) -> float:
    probs = proposal.probs or ()
    return float(probs[node][proposal.token_ids[node]])


def _reranked(request: DraftTask, topology: Topology, noise: Noise) -> Proposal:
    proposal = draft_tree(request, topology, noise)
    level = depths(proposal.parents or ())
    return keep_nodes(proposal, sorted(range(len(proposal)), key=lambda node: (level[node], -_chance(proposal, node))))


def _best_child_kept(request: DraftTask, topology: Topology, noise: Noise) -> Proposal:
    proposal = draft_tree(request, topology, noise)
    parents, kept = proposal.parents or (), list[int]()
    for node, parent in enumerate(parents):
        siblings = [other for other, its_parent in enumerate(parents) if its_parent == parent]
        if (parent < 0 or parent in kept) and node == max(siblings, key=lambda other: _chance(proposal, other)):
            kept.append(node)
    return keep_nodes(proposal, kept)


# --- traversal --------------------------------------------------------------------------------------------------


def faulty_traversal(
    *,
    capped: bool = True,
    normalised: bool = True,
    reach_after_rejection: bool = True,
    residual_of_reach: bool = True,
    remove_drawn: bool | None = None,
    one_uniform: bool = False,
) -> TreeVerifier:
    """``verify_traversal`` as a recursion. Each argument adds one mistake; the defaults add none.

    ``remove_drawn`` forces whether a rejected child is removed from the draft's distribution; None is correct.
    """

    def verify(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> VerifyResult:
        if proposal.probs is None or proposal.parents is None or not len(proposal):
            return verify_recursive(proposal, target_probs_at, noise, position)
        probs, parents, branch = proposal.probs, proposal.parents, branches(proposal.parents)
        removes = not proposal.with_replacement if remove_drawn is None else remove_drawn

        def judge(node: int, reach: float) -> VerifyResult | None:
            path = tuple(path_to(parents, node))
            if reach <= 0.0:
                return None
            target_probs, bound, scale, rejected = target_probs_at(node + 1), reach, 1.0, False
            draft_probs: Weights | None = None
            for child in (child for child, parent in enumerate(parents) if parent == node):
                token_id = proposal.token_ids[child]
                draft_probs = probs[child] if draft_probs is None else draft_probs
                draft_prob = float(draft_probs[token_id])
                below = reach * float(target_probs[token_id]) / draft_prob if draft_prob > 0.0 else 0.0
                result = judge(child, min(1.0, below) if capped else below)
                if result is not None:
                    return result
                factor = reach if residual_of_reach else 1.0
                rest = np.maximum(factor * target_probs - draft_probs, 0.0)
                mass = float(rest.sum())
                if mass > 0.0:
                    target_probs = rest / mass if normalised else rest
                if reach_after_rejection and reach < 1.0:
                    bound, scale = mass, mass + 1.0 - reach
                    reach = bound / scale
                if removes:
                    left = draft_probs.copy()
                    left[token_id] = 0.0
                    draft_probs = left / left.sum() if left.any() else left
                rejected = True
            if node >= 0 and bound < scale:
                where = 0 if one_uniform else branch[node]
                if not noise.uniform(position + len(path) - 1, Purpose.ACCEPT, branch=where) * scale < bound:
                    return None
            purpose = Purpose.RECOVER if rejected else Purpose.BONUS
            weights = target_probs if target_probs.any() else target_probs_at(node + 1)
            token_id = noise.draw(weights, position + len(path), purpose)
            return VerifyResult(len(path), token_id, "recovered" if rejected else "bonus", path)

        return judge(-1, 1.0) or VerifyResult(0, 0, "recovered", ())  # the root is never rejected

    return verify


# --- rejection sampling child by child, and match ----------------------------------------------------------------


def _without_residual(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> VerifyResult:
    """Try each child of point masses against the target's distribution, without removing rejected siblings."""
    parents, path = proposal.parents or (), tuple[int, ...]()
    branch = branches(parents)
    while True:
        node = path[-1] if path else -1
        target_probs, accepted = target_probs_at(node + 1), None
        for child in (child for child, parent in enumerate(parents) if parent == node):
            uniform = noise.uniform(position + len(path), Purpose.ACCEPT, branch=branch[child])
            if uniform * 1.0 < float(target_probs[proposal.token_ids[child]]):
                accepted = child
                break
        if accepted is None:
            token_id = noise.draw(target_probs, position + len(path), Purpose.RECOVER)
            return VerifyResult(len(path), token_id, "recovered", path)
        path = (*path, accepted)


def _first_child_taken(proposal: Proposal, target_token: TargetToken) -> VerifyResult:
    result = verify_tree_match(proposal, target_token)
    parents, last = proposal.parents or (), result.nodes[-1] if result.nodes else -1
    if last not in parents:
        return result
    child = parents.index(last)
    return replace(result, path=(*result.nodes, child), num_accepted=result.num_accepted + 1)


def _uncle_row(proposal: Proposal, row: int) -> int:
    """The row before ``row`` if it has the same depth; else ``row``."""
    level = [0, *depths(proposal.parents or ())]
    return row - 1 if row > 0 and level[row - 1] == level[row] else row


@dataclass(frozen=True)
class _OneBranch:
    """Noise that is the same for all nodes of a depth."""

    noise: Noise

    def at_step(self, start: int) -> Noise:
        """The noise for another step."""
        return _OneBranch(self.noise.at_step(start))

    def uniform(self, position: int, purpose: Purpose, *, branch: int = 0) -> Uniform:
        """The uniform number of branch 0."""
        return self.noise.uniform(position, purpose)

    def draw(self, weights: Weights, position: int, purpose: Purpose, *, branch: int = 0) -> int:
        """A draw with the noise of branch 0."""
        return self.noise.draw(weights, position, purpose)


# --- all of them ------------------------------------------------------------------------------------------------


def _traversal(name: str, description: str, verifier: TreeVerifier, *, replacement: bool = False) -> Mutation:
    return Mutation(
        f"tree: {name}",
        description,
        "traversal",
        "with replacement" if replacement else "sampled",
        lambda build: replace(build, tree=replace(build.tree, traversal=verifier)),
    )


TREE_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "tree: children reranked",
        "drawn siblings put in the order of their draft probabilities",
        "recursive",
        "sampled",
        lambda build: replace(build, tree=replace(build.tree, draft=_reranked)),
    ),
    Mutation(
        "tree: only the best child kept",
        "of drawn siblings only the one with the highest draft probability is proposed",
        "traversal",
        "sampled",
        lambda build: replace(build, tree=replace(build.tree, draft=_best_child_kept)),
    ),
    _traversal(
        "drawn token not removed",
        "siblings drawn without replacement, verified as if with replacement",
        faulty_traversal(remove_drawn=False),
    ),
    _traversal(
        "token removed that was not",
        "siblings drawn with replacement, verified as if without replacement",
        faulty_traversal(remove_drawn=True),
        replacement=True,
    ),
    _traversal("no cap", "p_v = p_u P_u(v)/Q_u(v) without the cut at 1", faulty_traversal(capped=False)),
    _traversal(
        "residual not normalised",
        "after a rejection P_u is (p_u P_u - Q_u)+ without the division by its sum",
        faulty_traversal(normalised=False),
    ),
    _traversal(
        "p kept after a rejection",
        "p_u is not changed to D / (D + 1 - p_u)",
        faulty_traversal(reach_after_rejection=False),
    ),
    _traversal(
        "residual of a single node",
        "(P_u - Q_u)+ instead of (p_u P_u - Q_u)+",
        faulty_traversal(residual_of_reach=False),
    ),
    _traversal(
        "one uniform for all nodes of a depth",
        "nodes of the same depth verified with one uniform number",
        faulty_traversal(one_uniform=True),
    ),
    Mutation(
        "tree: noise shared by branches",
        "nodes of the same depth drawn and verified with the same noise",
        "traversal",
        "with replacement",
        lambda build: replace(build, at_step=lambda noise, start: _OneBranch(build.at_step(noise, start))),
    ),
    Mutation(
        "tree: noise of discarded drafts reused",
        "noise for drafts and acceptance keyed without the step, so that the next step uses it again",
        "traversal",
        "sampled",
        lambda build: replace(build, at_step=lambda noise, start: noise),
    ),
    Mutation(
        "tree: row of another branch",
        "a node verified with the target's distribution after another node of its depth",
        "traversal",
        "sampled",
        lambda build: replace(build, tree=replace(build.tree, row_of=_uncle_row)),
    ),
    Mutation(
        "tree: rejected point mass not removed",
        "each child of point masses tried against the target's distribution before any rejection",
        "recursive",
        "point mass",
        lambda build: replace(build, tree=replace(build.tree, recursive=_without_residual)),
    ),
    Mutation(
        "tree: unmatched child taken",
        "where no child is the target's token, the first one is accepted",
        "tree match",
        "point mass",
        lambda build: replace(build, tree=replace(build.tree, match=_first_child_taken)),
    ),
    Mutation(
        "tree: matched by the row of another branch",
        "a node's children compared with the target's token after another node of its depth",
        "tree match",
        "coupled",
        lambda build: replace(build, tree=replace(build.tree, row_of=_uncle_row)),
    ),
)
