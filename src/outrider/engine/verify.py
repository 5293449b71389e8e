"""Which verifier judges a proposal, and the target's law that it judges by."""

from __future__ import annotations

from torch import Tensor

from outrider.config import Verification
from outrider.ops.native import as_array, max_and_argmax
from outrider.request import Request
from outrider.sampling.noise import Noise, Weights
from outrider.sampling.request_law import RequestLaw
from outrider.verification.base import Proposal, VerifyResult
from outrider.verification.block import verify_block
from outrider.verification.match import sampled_tokens, verify_match
from outrider.verification.standard import verify_standard


def verify(
    request: Request,
    proposal: Proposal,
    logits: Tensor,
    noise: Noise,
    law: RequestLaw,
    *,
    method: Verification = "auto",
) -> VerifyResult:
    """Judge ``proposal`` by ``logits`` [1 + drafts, vocab]; row i scores the token at ``request.num_tokens + i``.

    Greedy requests match drafts against the argmax, point masses against the target's own draw at each position,
    and drafts that come with their law are judged by block. With ``standard`` all but greedy requests are judged by
    token-by-token rejection sampling. ``noise`` is that of this step. Raises ``ValueError`` if the target's logits are
    not finite where they are needed.
    """
    if request.params.greedy and not law.edits:
        largest, ids = max_and_argmax(logits)
        if not bool(largest.isfinite().all()):
            raise ValueError("the target's logits are not finite (NaN or infinity); the model or its input is broken")
        greedy_ids = ids.tolist()
        return verify_match(proposal.token_ids, lambda row: greedy_ids[row])
    rows, position, drafts = as_array(logits), request.num_tokens, proposal.token_ids
    if request.params.greedy:
        return verify_match(drafts, lambda row: law.greedy_token(rows[row], request.token_ids, drafts[:row]))

    def target_law(row: int) -> Weights:
        return law.probs(rows[row], request.token_ids, drafts[:row])

    if method == "standard":
        return verify_standard(proposal, target_law, noise, position)
    if proposal.probs is None:
        return verify_match(drafts, sampled_tokens(target_law, noise, position))
    return verify_block(proposal, target_law, noise, position)
