"""What goes into a verifier and what comes out.

Terms: the drafter *proposes* tokens x_1 … x_K; the target's pass gives its distribution at K + 1 positions; the
verifier *accepts* the first ``num_accepted`` of them and emits exactly one token more: the *recovered* token, drawn in
place of the first rejected draft, or the *bonus* token after the last draft when all were accepted. A pass
without drafts emits one *target* token.

Example: K = 3, x = (5, 9, 2); the first two are accepted, 2 is rejected and 7 recovered:
``VerifyResult(num_accepted=2, token_id=7, source="recovered")`` and the step emits 5, 9, 7.

Drafts may also form a *tree*: each node is one possible token after its parent, the root being the last committed
token. The verifier then accepts a path from the root down. Row 0 of the target's pass belongs to the root and row
i + 1 to node i; in a chain that is the row of the place after draft i.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.outputs import TokenSource
from outrider.sampling.noise import Weights


@dataclass(frozen=True)
class ProposalNote:
    """For the record: which of several drafters proposed and what was expected of it, or why none did."""

    drafter: str = ""
    expected: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens, and how they came about.

    ``probs is None`` says *point mass*: the tokens are a deterministic function of what is committed (and, for
    a seeded request, of its TARGET noise). Otherwise ``probs[i]`` [vocab] is the very distribution that
    ``token_ids[i]`` was drawn from, with DRAFT noise. There is no third state.

    ``chances[i]``, if a drafter of point masses can tell, is its estimate of the probability that ``token_ids[i]`` is
    reached and accepted. It may say how much of the proposal is worth a verification; it never decides what is emitted.

    ``parents`` makes a tree: ``parents[i]`` < i is the node that token i follows, or -1 for the root. Then ``probs[i]``
    is the whole distribution after the parent, the same for all its children, which stand in the order in which they
    were drawn: each from what its earlier siblings left of the distribution, renormalised, or with ``with_replacement``
    each from all of it. What was drawn must be kept; only a tree of point masses may be pruned at will.
    """

    token_ids: tuple[int, ...] = ()
    probs: tuple[Weights, ...] | None = None
    chances: tuple[float, ...] | None = None
    parents: tuple[int, ...] | None = None
    with_replacement: bool = False
    note: ProposalNote | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def depth(self) -> int:
        """Tokens of the longest path: the most that can be accepted."""
        return len(self) if self.parents is None else max(depths(self.parents), default=0)

    def drafted_before(self, row: int) -> tuple[int, ...]:
        """The drafts that the target has read when it gives ``row``: the tokens from the root to node ``row - 1``."""
        if self.parents is None:
            return self.token_ids[:row]
        return tuple(self.token_ids[node] for node in path_to(self.parents, row - 1))


@dataclass(frozen=True)
class VerifyResult:
    """``token_ids[:num_accepted]`` of a chain are emitted, then ``token_id``.

    Of a tree, those of ``path``: the accepted nodes from the root down, ``num_accepted`` of them.
    """

    num_accepted: int
    token_id: int
    source: TokenSource
    path: tuple[int, ...] | None = None

    @property
    def nodes(self) -> tuple[int, ...]:
        """Which of the proposal's tokens are accepted, in order."""
        return tuple(range(self.num_accepted)) if self.path is None else self.path


TargetProbs = Callable[[int], Weights]
"""The target's distribution [vocab] at the place of draft i, given the committed tokens and the drafts before i; asked
only for rows that decide something. Row K, after the last draft, is the bonus token's. Of a tree: the distribution
after node ``row - 1`` and its ancestors, row 0 being the root's."""

TargetToken = Callable[[int], int]
"""The target's own token at the place of draft i, given the committed tokens and the drafts before i. Of a tree: the
one after node ``row - 1``."""

_SUM_TOLERANCE = 1e-4


def depths(parents: Sequence[int]) -> list[int]:
    """The depth of each node; children of the root have depth 1."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the root's child down to ``node`` itself; none for the root, -1."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def check_proposal(proposal: Proposal, vocab_size: int, max_tokens: int) -> None:
    """Raise ``ValueError`` saying what is wrong if ``proposal`` breaks the drafters' contract.

    At most ``max_tokens`` ids, each in [0, ``vocab_size``); with ``probs``, one distribution [vocab_size] per token
    that is non-negative, sums to one and does not rule out the very token drawn from it. In a tree parents come before
    their children, siblings share one distribution, and two of them are the same token only if drawn with replacement.
    """
    token_ids, probs = proposal.token_ids, proposal.probs
    if len(token_ids) > max_tokens:
        raise ValueError(f"proposed {len(token_ids)} tokens where at most {max_tokens} were granted")
    for place, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"token {place} is id {token_id!r}, outside the vocabulary of {vocab_size} tokens")
    if proposal.parents is not None:
        _check_tree(proposal, proposal.parents)
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


def _check_tree(proposal: Proposal, parents: tuple[int, ...]) -> None:
    if len(parents) != len(proposal):
        raise ValueError(f"proposed {len(proposal)} tokens with {len(parents)} parents")
    probs = proposal.probs if proposal.probs is not None and len(proposal.probs) == len(parents) else None
    first: dict[int, int] = {}
    seen: set[tuple[int, int]] = set()
    for node, (parent, token_id) in enumerate(zip(parents, proposal.token_ids, strict=True)):
        if not -1 <= parent < node:
            raise ValueError(f"token {node} has parent {parent!r}; it must be -1 or an earlier token")
        if (parent, token_id) in seen and (proposal.probs is None or not proposal.with_replacement):
            raise ValueError(f"token {node} is id {token_id}, as is an earlier sibling; siblings must differ")
        seen.add((parent, token_id))
        eldest = first.setdefault(parent, node)
        if probs is not None and not (probs[node] is probs[eldest] or np.array_equal(probs[node], probs[eldest])):
            raise ValueError(f"draft_probs of tokens {eldest} and {node} differ, but both follow token {parent}")
