"""Trees: the verifiers against the oracle of one given tree, against their chain forms, and their guards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.audit.cases import Build
from outrider.audit.enumerate import enumerate_outcomes
from outrider.audit.tree_cases import TreeCase, tree_cases
from outrider.audit.tree_parts import TreeBuild
from outrider.sampling.noise import Noise, Weights
from outrider.sampling.rng import KeyedNoise
from outrider.verification.base import Proposal, VerifyResult, check_proposal
from outrider.verification.block import verify_block
from outrider.verification.oracle import total_variation
from outrider.verification.standard import verify_standard
from outrider.verification.tree import branches, verify_recursive, verify_traversal, verify_tree_match
from tests.unit.verification.oracle_tree import Outcomes, recursive_outcomes, traversal_outcomes

VOCAB = 4


@st.composite
def trees(draw: st.DrawFn) -> tuple[Proposal, list[Weights], list[Weights]]:
    """A proposal with distributions, and the target's and the draft's row after each node; zeros in either."""
    seed, with_replacement = draw(st.integers(0, 10**6)), draw(st.booleans())
    rng = np.random.default_rng(seed)

    def rows(count: int) -> list[Weights]:
        weights = rng.exponential(size=(count, VOCAB)) * (rng.random((count, VOCAB)) > 0.25)
        weights[np.arange(count), rng.integers(VOCAB, size=count)] += 0.1
        return [np.asarray(row / row.sum()) for row in weights]

    target, drafts = rows(7), rows(7)
    parents: list[int] = []
    token_ids: list[int] = []
    for node in range(draw(st.integers(0, 6))):
        parent = draw(st.integers(-1, node - 1))
        taken = {token_ids[i] for i, other in enumerate(parents) if other == parent and not with_replacement}
        free = [token_id for token_id in np.flatnonzero(drafts[parent + 1]).tolist() if token_id not in taken]
        if not free:
            break
        parents.append(parent)
        token_ids.append(draw(st.sampled_from(free)))
    probs = tuple(drafts[parent + 1] for parent in parents)
    proposal = Proposal(tuple(token_ids), probs, parents=tuple(parents), with_replacement=with_replacement)
    return proposal, target, drafts


def probs_of(verify: Callable[[Noise], VerifyResult]) -> Outcomes:
    found: Outcomes = {}
    for probability, result in enumerate_outcomes(verify):
        found[result.nodes, result.token_id] = found.get((result.nodes, result.token_id), 0.0) + probability
    return found


@settings(max_examples=150)
@given(trees())
def test_each_rule_gives_the_oracles_distribution_on_any_tree(
    tree: tuple[Proposal, list[Weights], list[Weights]],
) -> None:
    proposal, target, drafts = tree
    check_proposal(proposal, VOCAB, 6)
    parents, token_ids, replacement = proposal.parents or (), proposal.token_ids, proposal.with_replacement
    found = probs_of(lambda noise: verify_traversal(proposal, target.__getitem__, noise, 3))
    expected = traversal_outcomes(parents, token_ids, target, drafts, with_replacement=replacement)
    assert total_variation(found, expected) < 1e-12
    found = probs_of(lambda noise: verify_recursive(proposal, target.__getitem__, noise, 3))
    expected = recursive_outcomes(parents, token_ids, target, drafts, with_replacement=replacement)
    assert total_variation(found, expected) < 1e-12
    if len(set(zip(parents, token_ids, strict=True))) == len(parents):
        masses = replace(proposal, probs=None)
        found = probs_of(lambda noise: verify_recursive(masses, target.__getitem__, noise, 3))
        expected = recursive_outcomes(parents, token_ids, target, None, with_replacement=False)
        assert total_variation(found, expected) < 1e-12


@given(trees(), st.integers(0, 1000))
def test_a_chain_is_judged_as_by_block_and_token_by_token(
    tree: tuple[Proposal, list[Weights], list[Weights]], seed: int
) -> None:
    proposal, target, drafts = tree
    token_ids = tuple(int(np.argmax(drafts[node])) for node in range(len(proposal)))
    chain = Proposal(token_ids, tuple(drafts[: len(token_ids)]))
    as_tree = replace(chain, parents=tuple(range(-1, len(token_ids) - 1)))
    noise = KeyedNoise(seed)
    for by_tree, by_chain in ((verify_traversal, verify_block), (verify_recursive, verify_standard)):
        one, other = by_tree(as_tree, target.__getitem__, noise, 5), by_chain(chain, target.__getitem__, noise, 5)
        assert (one.nodes, one.token_id) == (other.nodes, other.token_id)
        assert one.source == other.source


def test_traversal_never_accepts_less_than_child_by_child() -> None:
    gained = []
    for case in tree_cases():
        if case.verifier != "traversal" or case.repeat or case.end_token_ids:
            continue
        traversal = expected_accepted(case)
        recursive = expected_accepted(replace(case, verifier="recursive"))
        assert traversal >= recursive - 1e-12, case.name
        gained.append(traversal - recursive)
    assert max(gained) > 0.02


def expected_accepted(case: TreeCase) -> float:
    return case.expected_accepted(Build(tree=TreeBuild()))


def test_match_follows_the_targets_own_tokens() -> None:
    proposal = Proposal((5, 7, 1, 2, 9), parents=(-1, -1, 1, 1, 3))
    says = {0: 7, 2: 2, 4: 9, 5: 3}
    asked: list[int] = []

    def target_token(row: int) -> int:
        asked.append(row)
        return says[row]

    assert verify_tree_match(proposal, target_token) == VerifyResult(3, 3, "bonus", (1, 3, 4))
    assert asked == [0, 2, 4, 5]
    assert verify_tree_match(proposal, {0: 7, 2: 8}.__getitem__) == VerifyResult(1, 8, "recovered", (1,))
    assert verify_tree_match(proposal, {0: 4}.__getitem__) == VerifyResult(0, 4, "recovered", ())


def test_noise_tells_nodes_of_one_depth_apart_and_a_chain_has_branch_zero() -> None:
    assert branches((-1, -1, 0, 1, 0, 2)) == [0, 1, 0, 1, 2, 0]
    assert branches((-1, 0, 1)) == [0, 0, 0]


def test_what_the_target_rules_out_is_not_looked_at_further() -> None:
    row, sure = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.5, 0.5])
    asked: list[int] = []

    def target_probs_at(index: int) -> Weights:
        asked.append(index)
        return row

    proposal = Proposal((2, 0, 1), (sure, row, row), parents=(-1, 0, 1))
    result = verify_traversal(proposal, target_probs_at, KeyedNoise(1), 0)
    assert result.nodes == ()
    assert asked == [0]


EVEN = np.array([0.5, 0.5])


@pytest.mark.parametrize(
    ("proposal", "problem"),
    [
        (Proposal((0, 1), parents=(-1,)), "proposed 2 tokens with 1 parents"),
        (Proposal((0, 1), parents=(-1, 1)), "token 1 has parent 1; it must be -1 or an earlier token"),
        (Proposal((0, 1), parents=(-2, 0)), "token 0 has parent -2"),
        (Proposal((1, 1), parents=(-1, -1)), "token 1 is id 1, as is an earlier sibling"),
        (Proposal((1, 1), (EVEN, EVEN), parents=(-1, -1)), "token 1 is id 1, as is an earlier sibling"),
        (Proposal((1, 1), parents=(-1, -1), with_replacement=True), "as is an earlier sibling"),
        (
            Proposal((0, 1), (EVEN, np.array([0.4, 0.6])), parents=(-1, -1)),
            "draft_probs of tokens 0 and 1 differ, but both follow token -1",
        ),
    ],
)
def test_a_broken_tree_is_named(proposal: Proposal, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_proposal(proposal, 2, 4)


def test_a_tree_drawn_with_replacement_may_repeat_a_token() -> None:
    check_proposal(Proposal((1, 1), (EVEN, EVEN.copy()), parents=(-1, -1), with_replacement=True), 2, 4)
