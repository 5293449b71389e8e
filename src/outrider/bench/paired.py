"""Statistics of interleaved runs: what two engines did next to each other in time is compared, then the median taken.

A median over pairs is not moved by a machine that slows down for a while, since that slows both halves of a pair.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Ratio:
    """The median of ``pairs`` paired ratios, and their lower and upper quartile."""

    median: float
    low: float
    high: float
    pairs: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def paired_ratio(numerator: Mapping[K, float], denominator: Mapping[K, float]) -> Ratio | None:
    """Ratios of the values that have the same key in both, such as (prompt, repeat).

    Values that are not above zero have no ratio, and are left out; None if no pair is left.
    """
    ratios = [
        value / denominator[key] for key, value in numerator.items() if value > 0 and denominator.get(key, 0.0) > 0
    ]
    if not ratios:
        return None
    low, high = quartiles(ratios)
    return Ratio(statistics.median(ratios), low, high, len(ratios))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Lower and upper quartile by linear interpolation, ends included; of one value it is that value."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def equal_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences have in common from their beginning."""
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))
