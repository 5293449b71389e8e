"""Sample-and-match for point masses: drafts are accepted while they equal the target's own tokens.

The target's token at each position is drawn with TARGET noise, as in plain sampling. A draft x is accepted with
probability p(x), as in rejection sampling. All emitted tokens are the target's own, so greedy output and the output of
a seeded request do not depend on the proposal.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.sampling.noise import Noise, Purpose
from outrider.verification.base import TargetProbs, TargetToken, VerifyResult


def verify_match(token_ids: Sequence[int], target_token: TargetToken) -> VerifyResult:
    """Accept ``token_ids`` while they equal the target's own tokens; then emit one token of the target.

    ``target_token(i)`` is called once per row, in order, up to the row of the last emitted token.
    """
    for place, token_id in enumerate(token_ids):
        chosen = target_token(place)
        if chosen != token_id:
            return VerifyResult(place, chosen, "recovered")
    num_drafts = len(token_ids)
    return VerifyResult(num_drafts, target_token(num_drafts), "bonus" if num_drafts else "target")


def sampled_tokens(target_probs_at: TargetProbs, noise: Noise, position: int) -> TargetToken:
    """A function from a row to the target's sampled token, with the noise of plain sampling at that position.

    ``position`` is the absolute position of the first draft.
    """

    def target_token(place: int) -> int:
        return noise.draw(target_probs_at(place), position + place, Purpose.TARGET)

    return target_token
