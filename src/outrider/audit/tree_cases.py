"""The grid of cases with trees: (verifier, drafting) x topologies x the traits of the chains' grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from outrider.audit.cases import (
    Build,
    Case,
    Drafting,
    DraftProbs,
    DraftTask,
    Tokens,
    Verifier,
)
from outrider.audit.traits import LATER_TRAITS, PARAMETER_TRAITS, TRAITS
from outrider.audit.tree_parts import Topology
from outrider.sampling.noise import Noise, Weights
from outrider.verification.base import depths
from outrider.verification.registry import VERIFIERS
from outrider.verification.tree import verify_recursive, verify_traversal


@dataclass(frozen=True)
class TreeCase(Case):
    """A case whose drafts form a tree. ``num_drafts`` is the depth of ``topology``."""

    topology: Topology = ()

    @property
    def name(self) -> str:
        """A name that is unique among the cases."""
        shape = " ".join(str(parent) for parent in self.topology)
        return f"{self.verifier}, {self.drafting}, {self.trait}, vocabulary {self.vocab_size}, parents {shape}"

    def _emitted(self, build: Build, request: DraftTask, probs_after: DraftProbs, noise: Noise) -> Tokens:
        position, parts = len(request.context), build.tree
        proposal = parts.draft(request, self.topology, noise)

        def row(index: int) -> Weights:
            return probs_after(proposal.drafted_before(parts.row_of(proposal, index)))

        if self.verifier == "traversal":
            result = parts.traversal(proposal, row, noise, position)
        elif self.verifier == "recursive":
            result = parts.recursive(proposal, row, noise, position)
        elif self.verifier in VERIFIERS:
            result = VERIFIERS[self.verifier].tree(proposal, row, noise, position)
        else:
            result = parts.match(proposal, parts.target_tokens(proposal, row, noise, position))
        return (*(proposal.token_ids[node] for node in result.nodes), result.token_id)


_WAYS: tuple[tuple[Verifier, Drafting], ...] = (
    ("traversal", "sampled"),
    ("traversal", "with replacement"),
    ("recursive", "sampled"),
    ("recursive", "with replacement"),
    ("recursive", "point mass"),
    ("tree match", "point mass"),
    ("tree match", "coupled"),
)
_SHAPES: tuple[tuple[int, Topology], ...] = (
    (3, (-1, 0)),
    (3, (-1, -1)),
    (4, (-1, -1, -1)),
    (3, (-1, -1, 0)),
    (3, (-1, -1, 1)),
    (3, (-1, -1, 0, 1)),
    (3, (-1, 0, 0, 1)),
    (3, (-1, -1, 0, 0)),
)
_FEW_SHAPES: tuple[tuple[int, Topology], ...] = ((3, (-1, -1)), (3, (-1, -1, 0)), (3, (-1, 0, 0)))
_REPEAT_WITHIN = 3
"""Largest number of nodes of a case with ``repeat``; larger ones take too long and are left out."""


def tree_cases() -> Iterator[TreeCase]:
    """The grid. Each (topology, trait) has models of its own.

    A registered verifier whose ``tree`` function is not ``verify_traversal`` or ``verify_recursive`` is added to it.
    """
    own_rules = [each.name for each in VERIFIERS.values() if each.tree not in (verify_traversal, verify_recursive)]
    for verifier, drafting in (*_WAYS, *((name, "sampled") for name in own_rules)):
        grid = [
            *product(_SHAPES, TRAITS.items()),
            *product(_FEW_SHAPES, PARAMETER_TRAITS.items()),
            *product(_FEW_SHAPES, LATER_TRAITS.items()),
        ]
        for seed, ((vocab_size, topology), (trait, settings)) in enumerate(grid, start=1000):
            depth = max(depths(topology))
            case = TreeCase(trait, vocab_size, depth, verifier, drafting, seed=seed, topology=topology, **settings)
            if not case.repeat or len(topology) <= _REPEAT_WITHIN:
                yield case
