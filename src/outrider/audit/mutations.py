"""Planted faults: plausible mistakes, each as a variant of one part of a ``Build``. The audit must catch all of them.

Every variant is exact except for its one mistake, so the total variation is the effect of that mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from outrider.audit.cases import (
    PROMPT,
    Build,
    DraftFunction,
    Drafting,
    DraftTask,
    MatchVerifier,
    Place,
    PlaceProbs,
    ProbsVerifier,
    Verifier,
    draft_tokens,
    probs_at,
)
from outrider.sampling.noise import Noise, Purpose, Weights
from outrider.sampling.probabilities import probabilities
from outrider.sampling_params import SamplingParams
from outrider.verification.base import Proposal, TargetProbs, TargetToken, VerifyResult
from outrider.verification.block import excess
from outrider.verification.match import verify_match
from outrider.verification.standard import residual, verify_standard


@dataclass(frozen=True)
class Mutation:
    """One planted fault. ``verifier`` and ``drafting`` select the cases that can show it."""

    name: str
    description: str
    verifier: Verifier
    drafting: Drafting
    plant: Callable[[Build], Build]


# --- the drafter ------------------------------------------------------------------------------------------------


def _unprocessed_probs(request: DraftTask, noise: Noise) -> Proposal:
    proposal = draft_tokens(request, noise)
    places = range(len(proposal))
    return replace(
        proposal, probs=tuple(request.unprocessed_probs(request.context + proposal.token_ids[:i]) for i in places)
    )


def _argmax_with_soft_probs(request: DraftTask, noise: Noise) -> Proposal:
    proposal = draft_tokens(replace(request, kind="point mass"), noise)
    places = range(len(proposal))
    return replace(proposal, probs=tuple(request.probs(request.context + proposal.token_ids[:i]) for i in places))


def _drop_unlikely(request: DraftTask, noise: Noise) -> Proposal:
    proposal = draft_tokens(request, noise)
    if proposal.probs and proposal.probs[-1][proposal.token_ids[-1]] < request.stop_below:
        return Proposal(proposal.token_ids[:-1], proposal.probs[:-1])
    return proposal


def _one_noise_for_all_places(request: DraftTask, noise: Noise) -> Proposal:
    token_ids: tuple[int, ...] = ()
    rows: tuple[Weights, ...] = ()
    for _ in range(request.max_tokens):
        rows = (*rows, request.probs(request.context + token_ids))
        token_ids = (*token_ids, noise.draw(rows[-1], len(request.context), Purpose.DRAFT))
    return Proposal(token_ids, rows)


# --- the standard verifier --------------------------------------------------------------------------------------

Replacement = Callable[[Weights, Weights], Weights]


def faulty_standard(
    *,
    row_shift: int = 0,
    bonus_shift: int = 0,
    accept_always: bool = False,
    inverted: bool = False,
    replacement: Replacement = residual,
    recover_with: Purpose = Purpose.RECOVER,
    reuse_for_bonus: bool = False,
) -> ProbsVerifier:
    """``verify_standard`` for sampled proposals. Each argument adds one mistake; the defaults add none.

    ``row_shift`` and ``bonus_shift`` shift the target rows of the drafts and of the bonus token. ``reuse_for_bonus``
    draws the bonus token with the noise of the last draft.
    """

    def verify(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> VerifyResult:
        num_drafts = len(proposal)
        if proposal.probs is None or num_drafts == 0:
            return verify_standard(proposal, target_probs_at, noise, position)
        for place, (token_id, draft_probs) in enumerate(zip(proposal.token_ids, proposal.probs, strict=True)):
            target_probs = target_probs_at(place + row_shift)
            scale, bound = float(draft_probs[token_id]), float(target_probs[token_id])
            if inverted:
                scale, bound = bound, scale
            if accept_always or noise.uniform(position + place, Purpose.ACCEPT) * scale < bound:
                continue
            weights = replacement(target_probs, draft_probs)
            return VerifyResult(place, noise.draw(weights, position + place, recover_with), "recovered")
        key = (position + num_drafts - 1, Purpose.DRAFT) if reuse_for_bonus else (position + num_drafts, Purpose.BONUS)
        return VerifyResult(num_drafts, noise.draw(target_probs_at(num_drafts + bonus_shift), *key), "bonus")

    return verify


def _softmaxed(target_probs: Weights, draft_probs: Weights) -> Weights:
    weights = np.exp(residual(target_probs, draft_probs))
    return np.asarray(weights / weights.sum())


def _absolute(target_probs: Weights, draft_probs: Weights) -> Weights:
    weights = np.abs(target_probs - draft_probs)
    return weights if weights.any() else target_probs


def _most_probable(target_probs: Weights, draft_probs: Weights) -> Weights:
    weights = residual(target_probs, draft_probs)
    return np.asarray(np.arange(weights.size) == np.argmax(weights), dtype=np.float64)


# --- block verification -----------------------------------------------------------------------------------------


def faulty_block(
    *,
    capped: bool = True,
    stop_at_failure: bool = False,
    accept_with_reach: bool = False,
    reach_of_residual: bool = True,
    one_uniform: bool = False,
) -> ProbsVerifier:
    """``verify_block`` for sampled proposals. Each argument adds one mistake; the defaults add none."""

    def verify(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> VerifyResult:
        num_drafts = len(proposal)
        if proposal.probs is None or num_drafts == 0:
            return verify_standard(proposal, target_probs_at, noise, position)
        reach, accepted, reach_there = 1.0, 0, 1.0
        for place, (token_id, draft_probs) in enumerate(zip(proposal.token_ids, proposal.probs, strict=True), start=1):
            reach *= float(target_probs_at(place - 1)[token_id]) / float(draft_probs[token_id])
            reach = min(1.0, reach) if capped else reach
            scale, bound = 1.0, reach
            if place < num_drafts and not accept_with_reach:
                bound = float(excess(target_probs_at(place), proposal.probs[place], reach).sum())
                scale = bound + 1.0 - reach
            where = position if one_uniform else position + place - 1
            if (bound > 0.0 and bound >= scale) or noise.uniform(where, Purpose.ACCEPT) * scale < bound:
                accepted, reach_there = place, reach
            elif stop_at_failure:
                break
        if accepted == num_drafts:
            return VerifyResult(
                accepted, noise.draw(target_probs_at(accepted), position + accepted, Purpose.BONUS), "bonus"
            )
        factor = reach_there if reach_of_residual else 1.0
        weights = excess(target_probs_at(accepted), proposal.probs[accepted], factor)
        weights = weights if weights.any() else target_probs_at(accepted)
        return VerifyResult(accepted, noise.draw(weights, position + accepted, Purpose.RECOVER), "recovered")

    return verify


# --- sample-and-match -------------------------------------------------------------------------------------------


def _match_next_row(token_ids: Sequence[int], target_token: TargetToken) -> VerifyResult:
    return verify_match(token_ids, lambda place: target_token(min(place + 1, len(token_ids))))


def _match_accept_all(token_ids: Sequence[int], target_token: TargetToken) -> VerifyResult:
    return VerifyResult(len(token_ids), target_token(len(token_ids)), "bonus")


def _match_bonus_from_last_row(token_ids: Sequence[int], target_token: TargetToken) -> VerifyResult:
    return verify_match(token_ids, lambda place: target_token(min(place, max(len(token_ids) - 1, 0))))


def _match_one_noise(target_probs_at: TargetProbs, noise: Noise, position: int) -> TargetToken:
    return lambda place: noise.draw(target_probs_at(place), position, Purpose.TARGET)


# --- the distribution -------------------------------------------------------------------------------------------


def _top_p_without_crossing_token(logits: Weights, params: SamplingParams, place: Place) -> Weights:
    kept = probs_at(logits, params, place)
    if params.greedy or params.top_p == 1.0 or np.count_nonzero(kept) == 1:
        return kept
    kept[np.argmin(np.where(kept > 0.0, kept, np.inf))] = 0.0
    return np.asarray(kept / kept.sum())


def _temperature_last(logits: Weights, params: SamplingParams, place: Place) -> Weights:
    truncated = probabilities(logits, SamplingParams(top_k=params.top_k, top_p=params.top_p))
    masked = np.where(truncated > 0.0, logits, -np.inf)
    return probabilities(masked, SamplingParams(temperature=params.temperature))


def _history_without_last_token(logits: Weights, params: SamplingParams, place: Place) -> Weights:
    shorter = max(len(place.context) - 1, len(PROMPT))
    return probs_at(logits, params, replace(place, context=place.context[:shorter], num_drafted=0))


def _history_without_drafts(logits: Weights, params: SamplingParams, place: Place) -> Weights:
    committed = len(place.context) - place.num_drafted
    return probs_at(logits, params, replace(place, context=place.context[:committed], num_drafted=0))


def _without(**defaults: float) -> PlaceProbs:
    return lambda logits, params, place: probs_at(logits, params.model_copy(update=defaults), place)


# --- all of them ------------------------------------------------------------------------------------------------


def _standard(name: str, description: str, verifier: ProbsVerifier) -> Mutation:
    return Mutation(name, description, "standard", "sampled", lambda build: replace(build, standard=verifier))


def _block(name: str, description: str, verifier: ProbsVerifier) -> Mutation:
    return Mutation(name, description, "block", "sampled", lambda build: replace(build, block=verifier))


def _draft(name: str, description: str, drafter: DraftFunction) -> Mutation:
    return Mutation(name, description, "standard", "sampled", lambda build: replace(build, draft=drafter))


def _match(name: str, description: str, verifier: MatchVerifier) -> Mutation:
    return Mutation(name, description, "match", "point mass", lambda build: replace(build, match=verifier))


def _probs(name: str, description: str, faulty: PlaceProbs) -> Mutation:
    return Mutation(name, description, "match", "point mass", lambda build: replace(build, probs=faulty))


MUTATIONS: tuple[Mutation, ...] = (
    _draft(
        "unprocessed draft distribution",
        "drafts drawn after temperature and top-k, proposed with the distribution before them",
        _unprocessed_probs,
    ),
    _draft(
        "argmax draft with a soft distribution",
        "the most probable draft token, proposed as if drawn from the distribution",
        _argmax_with_soft_probs,
    ),
    _draft(
        "unlikely draft dropped",
        "a drawn token is dropped because its draft probability is low",
        _drop_unlikely,
    ),
    _draft(
        "one noise for all drafts",
        "every draft of a step drawn with the noise of the first position",
        _one_noise_for_all_places,
    ),
    _standard(
        "acceptance inverted",
        "accepted with probability q/p instead of p/q",
        faulty_standard(inverted=True),
    ),
    _standard("everything accepted", "drafts are not verified at all", faulty_standard(accept_always=True)),
    _standard(
        "recovered from the target distribution",
        "after a rejection drawn from p instead of (p - q)+",
        faulty_standard(replacement=lambda target_probs, draft_probs: target_probs),
    ),
    _standard(
        "softmax over the residual",
        "(p - q)+ normalised by a softmax instead of its sum",
        faulty_standard(replacement=_softmaxed),
    ),
    _standard(
        "residual without the cut at zero",
        "|p - q| in place of (p - q)+",
        faulty_standard(replacement=_absolute),
    ),
    _standard(
        "most probable residual token",
        "the largest entry of (p - q)+ instead of a draw from it",
        faulty_standard(replacement=_most_probable),
    ),
    _standard(
        "draft noise reused to recover",
        "the recovered token drawn with the noise that drew the draft",
        faulty_standard(recover_with=Purpose.DRAFT),
    ),
    _standard(
        "acceptance noise reused to recover",
        "the recovered token drawn with the noise that rejected the draft",
        faulty_standard(recover_with=Purpose.ACCEPT),
    ),
    _standard(
        "draft noise reused for the bonus",
        "the bonus token drawn with the noise of the last draft",
        faulty_standard(reuse_for_bonus=True),
    ),
    _standard(
        "target rows off by one",
        "each draft verified with the target distribution of the position after it",
        faulty_standard(row_shift=1),
    ),
    _standard(
        "bonus from the wrong row",
        "the bonus token drawn from the distribution at the last draft's position",
        faulty_standard(bonus_shift=-1),
    ),
    _block("block: no cap", "p_i = p_(i-1) P/Q without the cut at 1", faulty_block(capped=False)),
    _block(
        "block: stopped at the first failure",
        "prefixes longer than the first that fails are not considered",
        faulty_block(stop_at_failure=True),
    ),
    _block(
        "block: every prefix accepted with p_i",
        "h_i = p_i for all prefixes instead of D_i / (D_i + 1 - p_i)",
        faulty_block(accept_with_reach=True),
    ),
    _block(
        "block: residual of a single token",
        "after tau drafts drawn from (P - Q)+ instead of (p_tau P - Q)+",
        faulty_block(reach_of_residual=False),
    ),
    _block(
        "block: one noise for all prefixes",
        "all prefixes of a step verified with one uniform number",
        faulty_block(one_uniform=True),
    ),
    Mutation(
        "block: noise of discarded drafts reused",
        "noise for drafts and acceptance keyed by position alone, so that the next step uses it again",
        "block",
        "sampled",
        lambda build: replace(build, at_step=lambda noise, start: noise),
    ),
    _match("matched against the next row", "each draft compared with the next position's token", _match_next_row),
    _match("matches not checked", "drafts emitted without comparing them", _match_accept_all),
    _match(
        "match: bonus from the wrong row",
        "after the last draft, the token of the last draft's position again",
        _match_bonus_from_last_row,
    ),
    Mutation(
        "match: one noise for all places",
        "the target's tokens of a step all drawn with the noise of the first position",
        "match",
        "point mass",
        lambda build: replace(build, target_tokens=_match_one_noise),
    ),
    _probs(
        "top-p without its last token",
        "the token whose mass crosses top_p is left out",
        _top_p_without_crossing_token,
    ),
    _probs("temperature after truncation", "top-k and top-p before temperature", _temperature_last),
    _probs("history one token behind", "penalties that miss the latest token", _history_without_last_token),
    _probs("history without the drafts", "penalties that count committed tokens only", _history_without_drafts),
    _probs("min_tokens forgotten", "end tokens allowed from the start", _without(min_tokens=0)),
    _probs("min-p forgotten", "tokens below min_p allowed", _without(min_p=0.0)),
)
