"""Sample-and-match: the target chooses its own token at each place, and drafts are accepted while they equal it.

For point masses. A draft x is accepted with probability p(x), as in rejection sampling, but what is emitted are the
target's own choices: greedy output, and the output of a seeded request, cannot depend on the proposal.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.sampling.noise import Noise, Purpose
from outrider.verification.base import TargetProbs, TargetToken, VerifyResult


def verify_match(token_ids: Sequence[int], target_token: TargetToken) -> VerifyResult:
    """Accept ``token_ids`` while they are the target's own; then emit the target's token.

    ``target_token(i)`` is asked once per place, in order, up to the one where the step ends.
    """
    for place, token_id in enumerate(token_ids):
        chosen = target_token(place)
        if chosen != token_id:
            return VerifyResult(place, chosen, "recovered")
    num_drafts = len(token_ids)
    return VerifyResult(num_drafts, target_token(num_drafts), "bonus" if num_drafts else "target")


def sampled_tokens(target_probs_at: TargetProbs, noise: Noise, position: int) -> TargetToken:
    """The target's sampled token at each place; the same noise as plain sampling at that absolute position.

    ``position`` is the absolute position of the first draft.
    """

    def target_token(place: int) -> int:
        return noise.draw(target_probs_at(place), position + place, Purpose.TARGET)

    return target_token
