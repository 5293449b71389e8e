"""The audit passes on the real build, and fails on every faulty one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outrider.audit.cases import Build, Case, DraftTask, all_cases, draft_tokens
from outrider.audit.exact import (
    ALL_MUTATIONS,
    CAUGHT_TV,
    MAX_TV,
    CaseResult,
    ExactReport,
    MutationResult,
    audit_exact,
    mutation_tv,
)
from outrider.audit.grammar_mutations import GRAMMAR_MUTATIONS
from outrider.audit.mutations import MUTATIONS, Mutation, faulty_standard
from outrider.audit.properties import (
    bonus_token,
    check_properties,
    deterministic_acceptance,
    monte_carlo,
    residual_normalisation,
    threshold_precision,
)
from outrider.audit.tree_cases import tree_cases
from outrider.audit.tree_mutations import faulty_traversal
from outrider.audit.tree_parts import TreeBuild
from outrider.config import SpeculativeConfig
from outrider.errors import ConfigError
from outrider.sampling.noise import Noise, Purpose
from outrider.verification.base import Proposal, TargetProbs, VerifyResult
from outrider.verification.registry import VERIFIERS, Verifier
from outrider.verification.standard import residual, verify_standard

NUM_CHAIN_CASES, NUM_TREE_CASES = 920, 896
SMALL = [case for case in (*all_cases(), *tree_cases()) if case.num_strings <= 3**3]


def planted(name: str) -> Mutation:
    return next(mutation for mutation in MUTATIONS if mutation.name == name)


def non_strict(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> VerifyResult:
    """Accepts when u * q <= p: no distribution can show it, so a property must."""
    if len(proposal) != 1 or proposal.probs is None:
        return verify_standard(proposal, target_probs_at, noise, position)
    draft_prob, target_prob = (
        float(proposal.probs[0][proposal.token_ids[0]]),
        float(target_probs_at(0)[proposal.token_ids[0]]),
    )
    bound = float(np.nextafter(target_prob, 1.0)) if target_prob else 2.0**-53
    if noise.uniform(position, Purpose.ACCEPT) * draft_prob < bound:
        return VerifyResult(1, noise.draw(target_probs_at(1), position + 1, Purpose.BONUS), "bonus")
    weights = residual(target_probs_at(0), proposal.probs[0])
    return VerifyResult(0, noise.draw(weights, position, Purpose.RECOVER), "recovered")


@pytest.fixture(scope="module")
def report() -> ExactReport:
    return audit_exact()


def test_the_real_build_is_exact_everywhere(report: ExactReport) -> None:
    worst = max(report.cases, key=lambda result: result.tv)
    assert worst.tv < MAX_TV, worst.case.name
    assert [(verifier, drafts) for verifier, drafts, _, _ in report.by_way()] == [
        ("standard", "sampled"),
        ("standard", "point mass"),
        ("block", "sampled"),
        ("match", "point mass"),
        ("match", "coupled"),
        ("traversal", "sampled"),
        ("traversal", "with replacement"),
        ("recursive", "sampled"),
        ("recursive", "with replacement"),
        ("recursive", "point mass"),
        ("tree match", "point mass"),
        ("tree match", "coupled"),
    ]
    assert len({result.case.name for result in report.cases}) == len(report.cases) == NUM_CHAIN_CASES + NUM_TREE_CASES
    assert report.passed


def test_every_planted_fault_is_caught(report: ExactReport) -> None:
    assert {result.mutation.name: result.tv for result in report.mutations if not result.caught} == {}
    assert len(report.mutations) == len(ALL_MUTATIONS) == 31 + 15 + 6


def test_the_documentation_lists_the_faults_with_their_figures(report: ExactReport) -> None:
    text = (Path(__file__).parents[3] / "docs" / "correctness.md").read_text(encoding="utf-8")
    for result in report.mutations:
        description = result.mutation.description.replace("|", "\\|")
        assert f"| {result.mutation.name} | {description} | {result.tv:.3f} |" in text
    assert f"\nThere are {len(report.cases)} cases." in text


def test_the_five_properties_hold(report: ExactReport) -> None:
    assert [item.name for item in report.properties] == [
        "deterministic acceptance",
        "threshold precision",
        "residual normalisation",
        "bonus token",
        "monte carlo",
    ]
    assert [item for item in report.properties if not item.passed] == []


def test_json_has_exactly_the_promised_keys(report: ExactReport) -> None:
    result = report.to_dict()
    assert list(result) == ["cases", "max_tv", "mutations", "properties", "passed"]
    assert {tuple(item) for item in result["mutations"]} == {("name", "tv", "caught")}
    assert {tuple(item) for item in result["properties"]} == {("name", "passed", "detail")}
    assert {type(item["passed"]) for item in result["properties"]} == {bool}


@pytest.mark.parametrize("mutation", ALL_MUTATIONS, ids=lambda mutation: mutation.name)
def test_audit_fails_when_a_faulty_part_is_swapped_in(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.audit.exact.ALL_MUTATIONS", MUTATIONS[:1])
    monkeypatch.setattr("outrider.audit.exact.check_properties", lambda build: [])
    cases = [case for case in SMALL if (case.verifier, case.drafting) == (mutation.verifier, mutation.drafting)]
    cases += [case for case in SMALL if (case.verifier, case.drafting) == ("standard", "sampled")][:20]
    sound = audit_exact(cases=cases)
    faulty = audit_exact(mutation.plant(Build()), cases=cases)
    assert sound.passed
    assert not faulty.passed
    assert faulty.max_tv > CAUGHT_TV


def test_the_mutants_template_without_a_mistake_is_exact() -> None:
    build = Build(standard=faulty_standard(), tree=TreeBuild(traversal=faulty_traversal()))
    assert max(case.total_variation(build) for case in SMALL) < MAX_TV


def test_a_harmless_change_is_no_catch() -> None:
    harmless = Mutation("none", "nothing changed", "standard", "sampled", lambda build: build)
    assert mutation_tv(harmless, Build(), SMALL) < MAX_TV


@pytest.mark.parametrize(
    ("build", "prop"),
    [
        (planted("acceptance inverted").plant(Build()), deterministic_acceptance),
        (Build(standard=non_strict), deterministic_acceptance),
        (Build(standard=non_strict), threshold_precision),
        (planted("everything accepted").plant(Build()), threshold_precision),
        (planted("softmax over the residual").plant(Build()), residual_normalisation),
        (planted("recovered from the target distribution").plant(Build()), residual_normalisation),
        (planted("bonus from the wrong row").plant(Build()), bonus_token),
        (planted("recovered from the target distribution").plant(Build()), monte_carlo),
        (planted("residual without the cut at zero").plant(Build()), monte_carlo),
    ],
)
def test_each_property_fails_for_a_verifier_without_it(
    build: Build, prop: Callable[[Build], tuple[bool, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.audit.properties.MONTE_CARLO_DRAWS", 5_000)
    passed, detail = prop(build)
    assert not passed, detail


def test_report_fails_if_only_a_property_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.audit.properties.MONTE_CARLO_DRAWS", 500)
    exact = (CaseResult(SMALL[0], 0.0),)
    failing = check_properties(Build(standard=non_strict))
    assert [item.name for item in failing if not item.passed] == ["deterministic acceptance", "threshold precision"]
    assert not ExactReport(exact, (), tuple(failing)).passed
    assert ExactReport(exact, (), tuple(check_properties(Build()))).passed


def test_report_fails_if_only_a_fault_is_missed() -> None:
    missed = MutationResult(MUTATIONS[0], CAUGHT_TV)
    assert not ExactReport((CaseResult(SMALL[0], 0.0),), (missed,), ()).passed


def test_the_grid_holds_what_is_promised_of_every_verifier() -> None:
    promised = {
        *("temperature", "top-k", "top-p", "min-p", "typical", "penalties", "logit bias and bad sequences"),
        *("min_tokens", "custom processor", "allowed tokens", "greedy", "several steps", "adaptive K"),
        *("end token inside the block", "grammar", "grammar, drafts without it", "grammar, several steps"),
        *("grammar, greedy", "grammar that begins inside the block", "grammar, adaptive K, parameters"),
    }
    ways: dict[tuple[str, str], set[str]] = {}
    for case in (*all_cases(), *tree_cases()):
        if case.num_drafts:
            ways.setdefault((case.verifier, case.drafting), set()).add(case.trait)
    assert len(ways) == 12
    assert {way: promised - traits for way, traits in ways.items() if promised - traits} == {}


@pytest.mark.parametrize("mutation", GRAMMAR_MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_cases_with_a_grammar_alone_catch_its_faults(mutation: Mutation) -> None:
    assert mutation_tv(mutation, Build(), [case for case in SMALL if case.language is not None]) > CAUGHT_TV


def test_drafts_leave_a_grammar_where_they_are_drawn_without_it() -> None:
    """Else the case would not show what becomes of an illegal draft."""
    case = next(case for case in SMALL if case.trait == "grammar, drafts without it" and case.num_drafts == 2)
    drawn = set[tuple[int, ...]]()

    def recording(request: DraftTask, noise: Noise) -> Proposal:
        proposal = draft_tokens(request, noise)
        drawn.add(proposal.token_ids)
        return proposal

    assert case.total_variation(Build(draft=recording)) < MAX_TV
    assert {(0, 0), (1, 2), (0, 1)} <= drawn


TRAITS = [
    "context-dependent distributions",
    "zeros in both distributions",
    "draft = target",
    "temperature, top-k, top-p",
    "top-k drafts, other temperature",
    "adaptive K",
    "end token inside the block",
    "greedy",
    "several steps",
    "all together",
]


@pytest.mark.parametrize("trait", TRAITS)
def test_every_trait_meets_every_k_up_to_three(trait: str) -> None:
    cases = [case for case in all_cases() if case.trait == trait and case.verifier == "standard"]
    assert {case.num_drafts for case in cases} == {0, 1, 2, 3}
    assert {case.vocab_size for case in cases} >= {3, 4, 5}


def test_models_depend_on_their_context_and_zeros_rule_tokens_out() -> None:
    target, draft = Case("", 5, 1, zeros=0.5, seed=3).models()
    rows = [target.logits((0,)), target.logits((1,)), draft.logits((0,))]
    assert not any(np.array_equal(rows[i], rows[j]) for i, j in ((0, 1), (0, 2)))
    assert any(np.isneginf(row).any() for row in rows)
    assert all(np.isfinite(row).any() for row in rows)


def _accepts_everything(proposal: Proposal, target_probs_at: TargetProbs, noise: Noise, position: int) -> VerifyResult:
    """Emits the drafts whatever the target holds of them; after them the target's own token."""
    nodes = [i for i in range(len(proposal)) if proposal.parents is None or proposal.parents[i] == i - 1]
    row = nodes[-1] + 1 if nodes else 0
    token_id = noise.draw(target_probs_at(row), position + len(nodes), Purpose.TARGET)
    path = None if proposal.parents is None else tuple(nodes)
    return VerifyResult(len(nodes), token_id, "bonus", path)


def test_a_registered_verifier_is_audited_without_more_ado(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {case.verifier for case in [*all_cases(), *tree_cases()]}
    assert names == {"standard", "block", "match", "traversal", "recursive", "tree match"}
    faulty = Verifier("everything", "accepts every draft", _accepts_everything, _accepts_everything)
    monkeypatch.setitem(VERIFIERS, faulty.name, faulty)
    for cases in (all_cases, tree_cases):
        own = [case for case in cases() if case.verifier == "everything"]
        assert len(own) > 50
        plain = next(case for case in own if case.num_drafts == 1 and case.trait == "context-dependent distributions")
        assert plain.total_variation(Build()) > 1e-3
    assert SpeculativeConfig(verification="everything").verification == "everything"
    with pytest.raises(ConfigError, match="must be one of auto, block, standard, coupled, everything"):
        SpeculativeConfig(verification="something")
