"""Which verifier judges a proposal, and the target's distribution that it judges by."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.config import Verification
from outrider.models.logits import Logits
from outrider.models.logits import greedy_ids as batched_greedy_ids
from outrider.request import Request
from outrider.sampling.noise import Noise, Weights
from outrider.sampling.request_sampler import RequestSampler
from outrider.verification.base import Proposal, VerifyResult
from outrider.verification.block import verify_block
from outrider.verification.standard import verify_standard
from outrider.verification.tree import tokens_drawn_by, verify_recursive, verify_traversal, verify_tree_match


def greedy_choices(rows: Sequence[tuple[Request, RequestSampler, Logits]]) -> dict[str, list[int]]:
    """The most probable token of each row [1 + drafts, vocab], by request, of those that need nothing else.

    All are found at once, which takes far less than one after another. Empty where logits are not finite.
    """
    chosen = [(request, logits) for request, sampler, logits in rows if _follows_argmax(request, sampler)]
    found = batched_greedy_ids([logits for _, logits in chosen]) if chosen else []
    return {request.request_id: ids for (request, _), ids in zip(chosen, found, strict=True)}


def _follows_argmax(request: Request, sampler: RequestSampler) -> bool:
    return request.params.greedy and not sampler.edits


def verify(
    request: Request,
    proposal: Proposal,
    logits: Logits,
    noise: Noise,
    sampler: RequestSampler,
    *,
    method: Verification = "auto",
    greedy_ids: Sequence[int] = (),
) -> VerifyResult:
    """Judge ``proposal`` by ``logits`` [1 + drafts, vocab]: row 0 is for the next token, row i + 1 for that after i.

    Greedy requests match drafts against the argmax, point masses against the target's own draw at each position,
    and drafts that come with their distribution are judged by block, or in a tree by traversal; with ``standard`` by
    rejection sampling, token by token or child by child. Matching point masses is exact whatever they are: retrieval
    may propose what another request with the same seed said, and no draw may depend on that. ``noise`` is that of this
    step. ``greedy_ids`` are those of ``greedy_choices``, if they were made. Raises ``ValueError`` if the target's
    logits are not finite where they are needed.
    """
    if _follows_argmax(request, sampler):
        ids = greedy_ids or logits.argmax()
        if not ids:
            raise ValueError("the target's logits are not finite (NaN or infinity); the model or its input is broken")
        return verify_tree_match(proposal, ids.__getitem__)
    rows, position, drafted_before = logits.rows(slice(None)), request.num_tokens, proposal.drafted_before
    if request.params.greedy:
        return verify_tree_match(
            proposal, lambda row: sampler.greedy_token(rows[row], request.token_ids, drafted_before(row))
        )

    def target_token(row: int, at: int) -> int:
        return sampler.draw(rows[row], request.token_ids, drafted_before(row), noise, at)

    if proposal.probs is None:
        return verify_tree_match(proposal, tokens_drawn_by(target_token, proposal, position))

    def target_probs_at(row: int) -> Weights:
        return sampler.probs(rows[row], request.token_ids, drafted_before(row))

    if method == "standard":
        rejection = verify_standard if proposal.parents is None else verify_recursive
        return rejection(proposal, target_probs_at, noise, position)
    by_block = verify_block if proposal.parents is None else verify_traversal
    return by_block(proposal, target_probs_at, noise, position)
