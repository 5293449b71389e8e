"""What a step can tell about each token it emits: how probable target and draft held it, and what it replaced.

Read from rows and distributions that are there anyway; nothing here draws, judges or commits, so no output depends on
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from outrider.models.logits import Logits
from outrider.outputs import RejectedDraft, TokenDetail, TokenSource
from outrider.request import Request
from outrider.request_state import RequestState
from outrider.sampling.logprobs import report_of_logits
from outrider.sampling.noise import Weights
from outrider.verification.base import Proposal


def output_details(
    request: RequestState,
    proposal: Proposal,
    tokens: Sequence[tuple[int, TokenSource]],
    logits: Logits,
    nodes: Sequence[int],
    token_text: Callable[[int], str],
) -> list[TokenDetail]:
    """For each of ``tokens``, which the step emits, by its row of ``logits`` [1 + drafts, vocab]; empty unless wanted.

    ``nodes`` are the accepted drafts; the first token's row is 0, each other's the one after the draft before it. Call
    it before the tokens are committed and the step is counted. ``token_text`` gives the text of a rejected token.
    """
    if not request.params.token_details:
        return []
    step = request.metrics.speculative_decoding.num_steps + 1
    emitted = [token_id for token_id, _ in tokens]
    details = []
    for place, (token_id, source) in enumerate(tokens):
        parent = nodes[place - 1] if place else -1
        target_prob = _target_probs(request, logits.row(parent + 1), emitted[:place])
        detail = TokenDetail(token_id, source, step, place, target_prob(token_id))
        tried = nodes[place] if source == "accepted" else _first_child(proposal, parent)
        if tried is not None:
            draft_prob = _draft_prob(proposal, tried)
            tried_id, accepted = proposal.token_ids[tried], source == "accepted"
            chance = _acceptance(request, proposal, tried, target_prob(tried_id), accepted=accepted)
            if accepted:
                detail = replace(detail, draft_prob=draft_prob, acceptance_prob=chance)
            else:
                rejected = RejectedDraft(tried_id, token_text(tried_id), target_prob(tried_id), draft_prob, chance)
                own = None if proposal.probs is None else float(proposal.probs[tried][token_id])
                detail = replace(detail, draft_prob=own, rejected=rejected)
        details.append(detail)
    return details


def _target_probs(request: RequestState, row: Weights, drafted: Sequence[int]) -> Callable[[int], float]:
    """The target's probability of a token at this place, from its ``row`` [vocab] of logits.

    A greedy distribution is one at a single token; its requests get the softmax of the edited logits instead.
    """
    if request.params.greedy:
        edited = request.sampler.edited(row, request.token_ids, drafted)
        return lambda token_id: math.exp(report_of_logits(edited, token_id, 0).logprob)
    probs = request.sampler.probs(row, request.token_ids, drafted)
    return lambda token_id: float(probs[token_id])


def _draft_prob(proposal: Proposal, node: int) -> float | None:
    """What the draft gave ``node`` after its parent: by its distribution, or by a retrieval's estimate; None for
    neither.

    ``chances`` are those of a whole path, so the estimate for one token is the ratio to its parent's.
    """
    if proposal.probs is not None:
        return float(proposal.probs[node][proposal.token_ids[node]])
    if proposal.chances is None:
        return None
    parent = node - 1 if proposal.parents is None else proposal.parents[node]
    before = proposal.chances[parent] if parent >= 0 else 1.0
    return min(1.0, proposal.chances[node] / before) if before > 0.0 else 0.0


def _acceptance(request: Request, proposal: Proposal, node: int, target_prob: float, *, accepted: bool) -> float:
    if request.params.greedy:
        return 1.0 if accepted else 0.0
    if proposal.probs is None:
        return target_prob
    return min(1.0, target_prob / float(proposal.probs[node][proposal.token_ids[node]]))


def _first_child(proposal: Proposal, parent: int) -> int | None:
    """The draft that was tried first after ``parent``; None where the draft ends."""
    if proposal.parents is None:
        return parent + 1 if parent + 1 < len(proposal) else None
    return next((node for node, above in enumerate(proposal.parents) if above == parent), None)
