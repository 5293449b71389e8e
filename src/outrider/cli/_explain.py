"""Why the engine speculated as it did: the K trace of a request, by drafter and by reason, as plain lines."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.engine.engine import Engine
    from outrider.outputs import RequestMetrics, SpecDecodeStats

_TRACE_STEPS = 400


def explain(engine: Engine, metrics: RequestMetrics) -> list[str]:
    """What ``--explain`` prints about one finished request."""
    stats = metrics.speculative_decoding
    lines = [f"speculation     {metrics.speculation}"]
    passes = getattr(engine.speculator.policy, "passes", None)
    if passes is not None:
        table = passes.table()
        shown = [rows for rows in (1, 2, 4, 8, 16, 32) if rows in table]
        one = table[min(table)]
        costs = ", ".join(f"{rows}: {1e3 * table[rows]:.1f} ms ({table[rows] / one:.2f}x)" for rows in shown)
        lines.append(f"pass by rows    {costs}")
    lines.append(f"K by step       {_trace(stats)}")
    lines += _by_drafter(stats)
    reasons = Counter(why for why in stats.per_step_why if why)
    undrafted = stats.num_steps - stats.num_spec_steps
    if undrafted:
        told = ", ".join(f"{why} in {count}" for why, count in reasons.most_common())
        lines.append(f"K = 0           in {undrafted} of {stats.num_steps} steps" + (f": {told}" if told else ""))
    lines.append(
        f"time            drafting {1e3 * stats.draft_seconds:.1f} ms, verifying {1e3 * stats.verify_seconds:.1f} ms"
    )
    if stats.realised_gain is not None and stats.estimated_gain is not None:
        lines.append(
            f"gain over K = 0 {stats.realised_gain:.2f}x by the cost table, {stats.estimated_gain:.2f}x expected"
        )
    if metrics.num_cached_tokens:
        lines.append(f"prefix cache    {metrics.num_cached_tokens} prompt tokens found")
    return lines


def _trace(stats: SpecDecodeStats) -> str:
    """``0x3 15 5x2``: K of each step, with how often in a row; a ``+`` after K that were all accepted."""
    steps = [
        f"{drafted}{'+' if drafted and accepted == drafted else ''}"
        for drafted, accepted in zip(stats.per_step_drafted, stats.per_step_accepted, strict=True)
    ]
    runs = [(text, len(list(group))) for text, group in groupby(steps[:_TRACE_STEPS])]
    more = f" … and {len(steps) - _TRACE_STEPS} steps more" if len(steps) > _TRACE_STEPS else ""
    return " ".join(text if count == 1 else f"{text}x{count}" for text, count in runs) + more


def _by_drafter(stats: SpecDecodeStats) -> list[str]:
    lines = []
    steps = list(zip(stats.per_step_drafter, stats.per_step_drafted, stats.per_step_accepted, strict=True))
    for name in sorted({name for name, drafted, _ in steps if drafted}):
        own = [(drafted, accepted) for each, drafted, accepted in steps if each == name and drafted]
        drafted, accepted = sum(d for d, _ in own), sum(a for _, a in own)
        lines.append(
            f"{name or 'drafts':<15} {accepted} of {drafted} accepted in {len(own)} steps, "
            f"{1 + accepted / len(own):.2f} tokens per such step"
        )
    return lines
