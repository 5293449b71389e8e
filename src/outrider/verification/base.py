"""The input and output types of verifiers.

Terms: the drafter *proposes* the tokens x_1 … x_K. One pass of the target gives its distribution at K + 1 positions.
The verifier *accepts* the first ``num_accepted`` tokens and emits exactly one more: the *recovered* token, drawn in
place of the first rejected draft, or the *bonus* token, drawn after the last draft when all were accepted. A pass
without drafts emits one *target* token.

Example: K = 3, x = (5, 9, 2). The tokens 5 and 9 are accepted, 2 is rejected, and 7 is recovered. The result is
``VerifyResult(num_accepted=2, token_id=7, source="recovered")``, and the step emits 5, 9, 7.

Drafts can also form a *tree*. The root is the last committed token, and each node is one possible token after its
parent. The verifier accepts a path from the root downwards. Row 0 of the target's pass belongs to the root, and row
i + 1 to node i. In a chain, row i + 1 is the position after draft i.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.outputs import TokenSource
from outrider.sampling.noise import Weights


@dataclass(frozen=True)
class ProposalNote:
    """Statistics of a proposal: the drafter's name and the expected number of accepted tokens, or why none drafted."""

    drafter: str = ""
    expected: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens and the distributions that they were drawn from.

    ``probs is None`` means *point masses*: the tokens are a deterministic function of the committed tokens (and of the
    request's TARGET noise, if drafts are coupled with it). Otherwise ``probs[i]`` [vocab] is exactly the distribution
    from which ``token_ids[i]`` was drawn, with DRAFT noise. There is no third state.

    ``chances[i]`` is the drafter's estimate of the probability that ``token_ids[i]`` is reached and accepted; None if
    it has no estimate. It can limit how many tokens are verified. It never changes which tokens are emitted.

    ``parents`` makes a tree: ``parents[i]`` < i is the parent of node i, or -1 for the root. Then ``probs[i]`` is the
    whole distribution after the parent, and all children of a node have the same one. Siblings are listed in the order
    in which they were drawn. Each is drawn from the distribution without its earlier siblings, renormalised, or with
    ``with_replacement`` from the whole distribution. A drawn token must be kept. Only a tree of point masses can be
    pruned freely.
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
        """Number of tokens of the longest path: the largest possible ``num_accepted``."""
        return len(self) if self.parents is None else max(depths(self.parents), default=0)

    def drafted_before(self, row: int) -> tuple[int, ...]:
        """The drafts before the position of ``row``: the tokens on the path from the root to node ``row - 1``."""
        if self.parents is None:
            return self.token_ids[:row]
        return tuple(self.token_ids[node] for node in path_to(self.parents, row - 1))


@dataclass(frozen=True)
class VerifyResult:
    """The step emits ``token_ids[:num_accepted]`` of the proposal, then ``token_id``.

    For a tree it emits the tokens of ``path``, the ``num_accepted`` accepted nodes from the root downwards.
    """

    num_accepted: int
    token_id: int
    source: TokenSource
    path: tuple[int, ...] | None = None

    @property
    def nodes(self) -> tuple[int, ...]:
        """Indices of the accepted tokens in the proposal, in order."""
        return tuple(range(self.num_accepted)) if self.path is None else self.path


TargetProbs = Callable[[int], Weights]
"""From a row to the target's distribution [vocab]. In a chain, row i is the position of draft i, after the committed
tokens and the drafts before i; row K is the position of the bonus token. In a tree, row 0 is the position after the
root, and row i + 1 the position after node i and its ancestors. Verifiers call it only for the rows that they need."""

TargetToken = Callable[[int], int]
"""From a row, as in ``TargetProbs``, to the target's own token at that position."""

_SUM_TOLERANCE = 1e-4


def depths(parents: Sequence[int]) -> list[int]:
    """The depth of each node; children of the root have depth 1."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the root's child to ``node`` inclusive; empty for the root, -1."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def check_proposal(proposal: Proposal, vocab_size: int, max_tokens: int) -> None:
    """Raise ``ValueError`` if ``proposal`` breaks the contract of drafters.

    A proposal has at most ``max_tokens`` ids, each in [0, ``vocab_size``). With ``probs`` it has one distribution
    [vocab_size] per token, which is non-negative, sums to one and gives the token a positive probability. In a tree,
    parents come before their children and siblings share one distribution. Two siblings can have the same token only
    if they were drawn with replacement.
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
            raise ValueError(f"token {place} is id {token_id}, but its own draft_probs give it probability 0")


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
