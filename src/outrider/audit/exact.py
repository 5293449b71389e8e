"""The exact audit: all cases with the real verifiers, all planted faults, the five properties, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.audit.cases import Build, Case, all_cases
from outrider.audit.grammar_mutations import GRAMMAR_MUTATIONS
from outrider.audit.mutations import MUTATIONS, Mutation
from outrider.audit.properties import Property, check_properties
from outrider.audit.tree_cases import tree_cases
from outrider.audit.tree_mutations import TREE_MUTATIONS

MAX_TV = 1e-12
"""A case passes if its total variation is below this. Rounding in float64 gives about 1e-16."""
CAUGHT_TV = 1e-3
"""A planted fault is caught if its total variation is above this."""
_MUTATION_STRINGS = 3**3
"""Planted faults are run on cases with at most this ``num_strings``, because small cases show them."""

ALL_MUTATIONS = (*MUTATIONS, *TREE_MUTATIONS, *GRAMMAR_MUTATIONS)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class CaseResult:
    """A case and the total variation ``tv`` between its emitted distribution and the target's."""

    case: Case
    tv: float


@dataclass(frozen=True)
class MutationResult:
    """A planted fault and the largest total variation ``tv`` over the cases."""

    mutation: Mutation
    tv: float

    @property
    def caught(self) -> bool:
        """True if ``tv`` is above ``CAUGHT_TV``."""
        return self.tv > CAUGHT_TV


@dataclass(frozen=True)
class ExactReport:
    """The result of the exact audit."""

    cases: tuple[CaseResult, ...]
    mutations: tuple[MutationResult, ...]
    properties: tuple[Property, ...]

    @property
    def max_tv(self) -> float:
        """The largest total variation over all cases."""
        return max(result.tv for result in self.cases)

    def by_way(self) -> list[tuple[str, str, int, float]]:
        """(verifier, drafting, number of cases, largest total variation) per pair of verifier and drafting."""
        ways: dict[tuple[str, str], list[float]] = {}
        for result in self.cases:
            ways.setdefault((result.case.verifier, result.case.drafting), []).append(result.tv)
        return [(verifier, drafting, len(tvs), max(tvs)) for (verifier, drafting), tvs in ways.items()]

    @property
    def passed(self) -> bool:
        """True if all cases are exact, all planted faults are caught and all properties hold."""
        return (
            self.max_tv < MAX_TV
            and all(result.caught for result in self.mutations)
            and all(item.passed for item in self.properties)
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as a dict for JSON."""
        return {
            "cases": len(self.cases),
            "max_tv": self.max_tv,
            "mutations": [
                {"name": result.mutation.name, "tv": result.tv, "caught": result.caught} for result in self.mutations
            ],
            "properties": [
                {"name": item.name, "passed": item.passed, "detail": item.detail} for item in self.properties
            ],
            "passed": self.passed,
        }


def audit_exact(
    build: Build | None = None, progress: Progress | None = None, cases: Sequence[Case] | None = None
) -> ExactReport:
    """Audit ``build`` (default: the real parts) over ``cases`` (default: all cases).

    ``progress`` is called with a short text before each stage.
    """
    build = Build() if build is None else build
    tell = progress if progress is not None else lambda text: None
    cases = (*all_cases(), *tree_cases()) if cases is None else tuple(cases)
    tell(f"enumerating {len(cases)} cases")
    results = tuple(CaseResult(case, case.total_variation(build)) for case in cases)
    small = [case for case in cases if case.num_drafts and case.num_strings <= _MUTATION_STRINGS]
    caught = []
    for mutation in ALL_MUTATIONS:
        tell(f"planting a fault: {mutation.name}")
        caught.append(MutationResult(mutation, mutation_tv(mutation, build, small)))
    tell("checking the five properties")
    return ExactReport(results, tuple(caught), tuple(check_properties(build)))


def mutation_tv(mutation: Mutation, build: Build, cases: list[Case]) -> float:
    """The largest total variation over ``cases`` with ``mutation`` planted in ``build``."""
    faulty = mutation.plant(build)
    shows_in = [case for case in cases if (case.verifier, case.drafting) == (mutation.verifier, mutation.drafting)]
    return max(case.total_variation(faulty) for case in shows_in)
