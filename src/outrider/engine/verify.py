"""One request's drafts judged by the target's logits."""

from __future__ import annotations

from outrider.models.logits import Logits
from outrider.request_state import RequestState
from outrider.sampling.noise import Noise, Weights
from outrider.verification.base import Proposal, VerifyResult
from outrider.verification.registry import VERIFIERS, Verifier
from outrider.verification.tree import tokens_drawn_by, verify_tree_match


def verify(
    request: RequestState, proposal: Proposal, logits: Logits, noise: Noise, verifier: Verifier = VERIFIERS["auto"]
) -> VerifyResult:
    """Judge ``proposal`` by ``logits`` [1 + drafts, vocab]: row 0 is for the next token, row i + 1 for that after i.

    Greedy requests match drafts against the argmax, and point masses are matched against the target's own draw at each
    position. Matching point masses is exact whatever they are: retrieval may propose what another request with the
    same seed said, and no draw may depend on that. Drafts with distributions are judged by ``verifier``. ``noise`` is
    that of this step. Raises ``ValueError`` if the target's logits are not finite where they are needed.
    """
    sampler, committed, drafted_before = request.sampler, request.token_ids, proposal.drafted_before
    if request.follows_argmax:
        ids = logits.argmax()
        if not ids:
            raise ValueError("the target's logits are not finite (NaN or infinity); the model or its input is broken")
        return verify_tree_match(proposal, ids.__getitem__)
    if request.params.greedy:
        return verify_tree_match(
            proposal, lambda row: sampler.greedy_token(logits.row(row), committed, drafted_before(row))
        )

    def target_token(row: int, at: int) -> int:
        return sampler.draw(logits.row(row), committed, drafted_before(row), noise, at)

    if proposal.probs is None:
        return verify_tree_match(proposal, tokens_drawn_by(target_token, proposal, request.num_tokens))

    def target_probs_at(row: int) -> Weights:
        return sampler.probs(logits.row(row), committed, drafted_before(row))

    judge = verifier.chain if proposal.parents is None else verifier.tree
    return judge(proposal, target_probs_at, noise, request.num_tokens)
