"""The exact audit: every case through the real verifiers, every planted fault, the five properties, one verdict."""

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
"""Largest total variation that counts as none: rounding in float64 is around 1e-16."""
CAUGHT_TV = 1e-3
"""Smallest total variation at which a planted fault counts as caught."""
_MUTATION_STRINGS = 3**3
"""Cases with more strings to the horizon than this are left out for planted faults, which show in small ones."""

ALL_MUTATIONS = (*MUTATIONS, *TREE_MUTATIONS, *GRAMMAR_MUTATIONS)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class CaseResult:
    """``tv`` is the total variation between the emitted distribution and the target's."""

    case: Case
    tv: float


@dataclass(frozen=True)
class MutationResult:
    """``tv`` is the largest total variation over the cases; the fault is caught if it is above ``CAUGHT_TV``."""

    mutation: Mutation
    tv: float

    @property
    def caught(self) -> bool:
        """Whether the audit noticed."""
        return self.tv > CAUGHT_TV


@dataclass(frozen=True)
class ExactReport:
    """What the exact audit found."""

    cases: tuple[CaseResult, ...]
    mutations: tuple[MutationResult, ...]
    properties: tuple[Property, ...]

    @property
    def max_tv(self) -> float:
        """The largest total variation over all cases."""
        return max(result.tv for result in self.cases)

    def by_way(self) -> list[tuple[str, str, int, float]]:
        """(verifier, kind of drafts, number of cases, largest total variation) of each way to decode."""
        ways: dict[tuple[str, str], list[float]] = {}
        for result in self.cases:
            ways.setdefault((result.case.verifier, result.case.drafting), []).append(result.tv)
        return [(verifier, drafting, len(tvs), max(tvs)) for (verifier, drafting), tvs in ways.items()]

    @property
    def passed(self) -> bool:
        """All cases exact, all planted faults caught, all properties hold."""
        return (
            self.max_tv < MAX_TV
            and all(result.caught for result in self.mutations)
            and all(item.passed for item in self.properties)
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON holds it."""
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
    """Audit ``build``, by default the real one, over ``cases``, by default all.

    ``progress`` is told in a few words what comes next.
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
    """The largest total variation that ``mutation``, planted in ``build``, shows over ``cases``."""
    faulty = mutation.plant(build)
    shows_in = [case for case in cases if (case.verifier, case.drafting) == (mutation.verifier, mutation.drafting)]
    return max(case.total_variation(faulty) for case in shows_in)
