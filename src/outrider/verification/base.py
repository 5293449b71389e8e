"""What goes into a verifier and what comes out.

Terms: the drafter *proposes* tokens x_1 … x_K; the target's pass gives its law at K + 1 positions; the verifier
*accepts* the first ``num_accepted`` of them and emits exactly one token more: the *recovered* token, drawn in
place of the first rejected draft, or the *bonus* token after the last draft when all were accepted. A pass
without drafts emits one *target* token.

Example: K = 3, x = (5, 9, 2); the first two are accepted, 2 is rejected and 7 recovered:
``VerifyResult(num_accepted=2, token_id=7, source="recovered")`` and the step emits 5, 9, 7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from outrider.outputs import TokenSource
from outrider.sampling.noise import Weights


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens, and how they came about.

    ``probs is None`` says *point mass*: the tokens are a deterministic function of what is committed (and, for
    a seeded request, of its TARGET noise). Otherwise ``probs[i]`` [vocab] is the very law that ``token_ids[i]``
    was drawn from, with DRAFT noise. There is no third state.

    ``chances[i]``, if a drafter of point masses can tell, is its estimate of the probability that ``token_ids[i]`` is
    reached and accepted. It may say how much of the proposal is worth a verification; it never decides what is emitted.
    """

    token_ids: tuple[int, ...] = ()
    probs: tuple[Weights, ...] | None = None
    chances: tuple[float, ...] | None = None

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class VerifyResult:
    """``token_ids[:num_accepted]`` of the proposal are emitted, then ``token_id``."""

    num_accepted: int
    token_id: int
    source: TokenSource


TargetLaw = Callable[[int], Weights]
"""The target's law [vocab] at the place of draft i, given the committed tokens and the drafts before i; asked only
for rows that decide something. Row K, after the last draft, is the bonus token's."""

TargetToken = Callable[[int], int]
"""The target's own token at the place of draft i, given the committed tokens and the drafts before i."""

_SUM_TOLERANCE = 1e-4


def check_proposal(proposal: Proposal, vocab_size: int, max_tokens: int) -> None:
    """Raise ``ValueError`` saying what is wrong if ``proposal`` breaks the drafters' contract.

    At most ``max_tokens`` ids, each in [0, ``vocab_size``); with ``probs``, one law [vocab_size] per token that is
    non-negative, sums to one and does not rule out the very token drawn from it.
    """
    token_ids, probs = proposal.token_ids, proposal.probs
    if len(token_ids) > max_tokens:
        raise ValueError(f"proposed {len(token_ids)} tokens where at most {max_tokens} were granted")
    for place, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"token {place} is id {token_id!r}, outside the vocabulary of {vocab_size} tokens")
    if probs is None:
        return
    if len(probs) != len(token_ids):
        raise ValueError(f"proposed {len(token_ids)} tokens with {len(probs)} rows of draft_probs")
    for place, (token_id, row) in enumerate(zip(token_ids, probs, strict=True)):
        if row.shape != (vocab_size,):
            raise ValueError(f"draft_probs of token {place} have shape {row.shape}, not ({vocab_size},)")
        total = float(row.sum(dtype=np.float64))
        if not abs(total - 1.0) <= _SUM_TOLERANCE:
            raise ValueError(f"draft_probs of token {place} sum to {total!r}, not 1")
        if row.min() < 0.0:
            raise ValueError(f"draft_probs of token {place} hold {float(row.min())!r}, below 0")
        if not row[token_id] > 0.0:
            raise ValueError(f"token {place} is id {token_id}, to which its own draft_probs give no chance")
