"""Planted faults in grammars: masks at the wrong position, and wrong handling of drafts that the mask forbids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from outrider.audit.cases import PROMPT, Place, PlaceProbs, Verifier, probs_at
from outrider.audit.mutations import Mutation
from outrider.audit.tree_mutations import keep_nodes
from outrider.sampling.noise import Noise, Weights
from outrider.sampling_params import SamplingParams
from outrider.verification.base import Proposal, TargetProbs, VerifyResult
from outrider.verification.standard import verify_standard
from outrider.verification.tree import verify_traversal


def _masked_as_after(logits: Weights, params: SamplingParams, place: Place, num_tokens: int) -> Weights:
    """The distribution at ``place`` with the mask for the position after the first ``num_tokens`` of its context."""
    if place.language is not None:
        output = place.context[len(PROMPT) : max(num_tokens, len(PROMPT))]
        logits = place.language.masked(logits, output, place.end_token_ids)
    return probs_at(logits, params, replace(place, language=None))


def _one_place_late(logits: Weights, params: SamplingParams, place: Place) -> Weights:
    return _masked_as_after(logits, params, place, len(place.context) - 1)


def _without_drafts(logits: Weights, params: SamplingParams, place: Place) -> Weights:
    return _masked_as_after(logits, params, place, len(place.context) - place.num_drafted)


def _after_truncation(logits: Weights, params: SamplingParams, place: Place) -> Weights:
    probs = probs_at(logits, params, replace(place, language=None))
    legal = np.where(probs_at(logits, SamplingParams(), place) > 0.0, probs, 0.0)
    return np.asarray(legal / legal.sum()) if legal.any() else probs_at(logits, params, place)


def _illegal_dropped(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> VerifyResult:
    if proposal.probs is None:
        return verify_standard(proposal, target_probs_at, noise, position)
    legal = 0
    while legal < len(proposal) and target_probs_at(legal)[proposal.token_ids[legal]] > 0.0:
        legal += 1
    shorter = Proposal(proposal.token_ids[:legal], proposal.probs[:legal])
    return verify_standard(shorter, target_probs_at, noise, position)


def _illegal_nodes_dropped(
    proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int
) -> VerifyResult:
    parents, legal = proposal.parents or (), list[int]()
    for node, (parent, token_id) in enumerate(zip(parents, proposal.token_ids, strict=True)):
        if (parent < 0 or parent in legal) and target_probs_at(parent + 1)[token_id] > 0.0:
            legal.append(node)
    if not legal:
        return verify_standard(Proposal(), target_probs_at, noise, position)
    names = [-1, *legal]
    result = verify_traversal(keep_nodes(proposal, legal), lambda row: target_probs_at(names[row] + 1), noise, position)
    return replace(result, path=tuple(legal[node] for node in result.nodes))


def _probs(name: str, description: str, faulty: PlaceProbs, verifier: Verifier = "match") -> Mutation:
    return Mutation(name, description, verifier, "point mass", lambda build: replace(build, probs=faulty))


GRAMMAR_MUTATIONS: tuple[Mutation, ...] = (
    _probs("grammar: mask one place late", "the mask of the position before", _one_place_late),
    _probs(
        "grammar: mask without the drafts", "the mask after the committed tokens, at every position", _without_drafts
    ),
    _probs("grammar: mask after truncation", "top-p before the mask instead of after it", _after_truncation),
    Mutation(
        "grammar: illegal draft dropped",
        "a drawn draft that the mask forbids is dropped, and the target's token drawn instead of a recovered one",
        "standard",
        "sampled",
        lambda build: replace(build, standard=_illegal_dropped),
    ),
    _probs("tree: mask one place late", "a node's mask is its parent's", _one_place_late, "tree match"),
    Mutation(
        "tree: illegal nodes dropped",
        "drawn nodes that the mask forbids are removed from the tree before verification",
        "traversal",
        "sampled",
        lambda build: replace(build, tree=replace(build.tree, traversal=_illegal_nodes_dropped)),
    ),
)
