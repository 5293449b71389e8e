"""How one request's tree of drafts grows, level by level. Knows a draft model's rows, not the model.

As in EAGLE-2 (Li et al. 2024, arXiv 2406.16858), each level expands the ``width`` nodes that are most likely reached,
each offering up to ``width`` children. A tree of point masses grows as long as its newest level holds any of the K
best nodes, and those K are proposed. A tree whose tokens are drawn keeps all that was drawn: how many children a node
gets is settled before any of them is drawn, and growth ends at K nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.drafters.base import DraftRequest, Proposal
from outrider.drafters.draft_rows import DraftRows
from outrider.errors import IntegrityError
from outrider.models.logits import Logits
from outrider.runner.model_runner import Chunk
from outrider.sampling.noise import Purpose, Weights

_FIRST_CHOICE = 0.6
_NEXT_CHOICE = 0.3
"""Of tokens chosen with the target's noise: the estimated chance that the first choice is the target's, and that of
each further choice over the one before. Their probabilities say little, since the noise has already chosen."""


@dataclass
class _Node:
    """One token after ``parent`` (-1: the root). ``probs`` [vocab] is the distribution after the parent, if it was
    drawn."""

    token_id: int
    parent: int
    score: float
    probs: Weights | None = None
    place: int | None = None
    """Where the draft's cache holds it; None if it was never fed."""


class DraftTree:
    """The tree of ``entry``'s request; ``done`` once nothing is to be expanded."""

    def __init__(self, entry: DraftRequest, rows: DraftRows, *, point_mass: bool, width: int) -> None:
        self.entry = entry
        self.start = entry.request.num_tokens
        self._rows = rows
        self._point_mass = point_mass
        self._width = width
        self._nodes: list[_Node] = []
        self._expanding = [-1]
        self._num_fed = 0

    @property
    def request_id(self) -> str:
        """Whose tree it is."""
        return self.entry.request.request_id

    @property
    def done(self) -> bool:
        """Nothing more is to be fed."""
        return not self._expanding

    @property
    def num_places(self) -> int:
        """Places that the draft's cache needs for what is fed next, and all before it."""
        return self.start + self._num_fed + len(self._expanding)

    def shrink(self) -> None:
        """Expand no further, because the cache has no room."""
        self._expanding = []

    def chunk(self) -> Chunk:
        """The nodes to be expanded, each a row that sees its ancestors."""
        start = self.start + self._num_fed
        for place, node in enumerate(self._expanding, start=start):
            self._nodes[node].place = place
        self._num_fed += len(self._expanding)
        request_id, tokens = self.entry.request.request_id, [self._nodes[node].token_id for node in self._expanding]
        paths = [[self._placed(above) for above in self._path(node)] for node in self._expanding]
        return Chunk(request_id, tokens, start, len(tokens), self.start, paths)

    def extend(self, logits: Logits) -> None:
        """Grow a level from ``logits`` [expanded nodes, draft vocab]."""
        first = len(self._nodes)
        for row, node in enumerate(self._expanding):
            if self._point_mass:
                self._offer(node, logits, row)
            else:
                self._draw(node, logits, row, first)
        level = list(range(first, len(self._nodes)))
        if self._point_mass:
            kept = set(self._best())
            level = [node for node in level if node in kept]
        elif len(self._nodes) >= self.entry.max_tokens:
            level = []
        self._expanding = sorted(level, key=self._rank)[: self._width]

    def proposal(self) -> Proposal:
        """The tree, all that was drawn or the best of what was offered."""
        kept = sorted(self._best()) if self._point_mass else range(len(self._nodes))
        names = {-1: -1, **{node: name for name, node in enumerate(kept)}}
        nodes = [self._nodes[node] for node in kept]
        probs = tuple(node.probs for node in nodes if node.probs is not None)
        return Proposal(
            tuple(node.token_id for node in nodes),
            None if self._point_mass else probs,
            parents=tuple(names[node.parent] for node in nodes),
        )

    def fed_path(self, token_ids: Sequence[int]) -> list[int]:
        """Where the cache holds ``token_ids``, the accepted path, counted from the root on, as far as they were fed."""
        by_token = {(node.parent, node.token_id): index for index, node in enumerate(self._nodes)}
        places: list[int] = []
        node: int | None = -1
        for token_id in token_ids:
            node = by_token.get((-1 if node is None else node, token_id))
            if node is None or self._nodes[node].place is None:
                break
            places.append(self._placed(node) - self.start)
        return places

    def _offer(self, parent: int, logits: Logits, row: int) -> None:
        """Up to ``width`` children: the most probable, or those that the target's noise chooses one after another."""
        entry, drafted = self.entry, self._drafted(parent)
        if entry.request.params.greedy:
            for token_id, logprob in self._rows.best(entry, logits, row, drafted, self._width):
                self._add(token_id, parent, logprob)
            return
        left = self._rows.probs(entry, logits, row, drafted)
        chance = _FIRST_CHOICE
        for _ in range(self._width):
            if left is None or not left.any():
                return
            token_id = entry.noise.draw(left, self.start + len(drafted), Purpose.TARGET)
            self._add(token_id, parent, math.log(chance))
            left[token_id] = 0.0
            chance *= _NEXT_CHOICE

    def _draw(self, parent: int, logits: Logits, row: int, first: int) -> None:
        """Up to ``width`` children drawn without replacement; ``first`` is the first node of their level."""
        entry, drafted = self.entry, self._drafted(parent)
        probs = self._rows.probs(entry, logits, row, drafted)
        if probs is None:
            return
        left = probs.copy()
        for _ in range(min(self._width, entry.max_tokens - len(self._nodes))):
            if not left.any():
                return
            position, branch = self.start + len(drafted), len(self._nodes) - first
            token_id = entry.noise.draw(left, position, Purpose.DRAFT, branch=branch)
            self._add(token_id, parent, math.log(float(probs[token_id])), probs)
            left[token_id] = 0.0

    def _add(self, token_id: int, parent: int, logprob: float, probs: Weights | None = None) -> None:
        above = 0.0 if parent < 0 else self._nodes[parent].score
        self._nodes.append(_Node(token_id, parent, above + logprob, probs))

    def _best(self) -> list[int]:
        """The K most likely nodes; a node is never ahead of its parent."""
        return sorted(range(len(self._nodes)), key=self._rank)[: self.entry.max_tokens]

    def _rank(self, node: int) -> tuple[float, int]:
        return -self._nodes[node].score, node

    def _path(self, node: int) -> list[int]:
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self._nodes[node].parent
        return path[::-1]

    def _drafted(self, node: int) -> list[int]:
        return [self._nodes[above].token_id for above in self._path(node)]

    def _placed(self, node: int) -> int:
        place = self._nodes[node].place
        if place is None:
            raise IntegrityError(f"draft node {node} was never fed, yet a node below it is")
        return place
