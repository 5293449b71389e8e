"""The result of a comparison, and what is derived from it. Runs nothing.

decode rate   tokens after the first one over the seconds they took, of one prompt in one round
ratio         median over (prompt, round) of the quotient of two engines' decode rates
pooled rate   all tokens after the first ones over all their seconds
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field
from typing import Any

from outrider.bench.paired import Ratio, equal_prefix, paired_ratio

REFERENCE = "outrider off"


@dataclass(frozen=True)
class Missing:
    """A peer without figures: not installed (``absent``), or installed and failed; why, and what to do."""

    name: str
    absent: bool
    reason: str
    todo: str


@dataclass(frozen=True)
class Run:
    """One prompt generated from by one engine in one mode, in one round."""

    label: str
    prompt: str
    repeat: int
    token_ids: tuple[int, ...]
    first_s: float
    rest_s: float
    rest_tokens: int
    drafted_steps: int = 0
    accepted_tokens: int = 0

    @classmethod
    def from_reply(cls, label: str, prompt: str, repeat: int, reply: dict[str, Any]) -> Run:
        """A run from what a worker answered."""
        return cls(
            label=label,
            prompt=prompt,
            repeat=repeat,
            token_ids=tuple(reply["token_ids"]),
            first_s=reply["first_s"],
            rest_s=reply["rest_s"],
            rest_tokens=reply["rest_tokens"],
            drafted_steps=reply.get("drafted_steps", 0),
            accepted_tokens=reply.get("accepted_tokens", 0),
        )

    @property
    def rate(self) -> float:
        """Tokens per second after the first token; 0.0 if there was only one."""
        return self.rest_tokens / self.rest_s if self.rest_s > 0 else 0.0


@dataclass
class EngineFigures:
    """One process. ``prompt_rates`` by round in tokens/s; ``forward_s`` by rows, then by (round, turn), in seconds."""

    name: str
    peer: bool
    version: str = ""
    detail: str = ""
    labels: list[str] = field(default_factory=list)
    measured_passes: bool = True
    load_s: float = 0.0
    peak_bytes: int = 0
    resident_bytes: int = 0
    idle_processor_s: float = 0.0
    idle_wall_s: float = 0.0
    prompt_rates: dict[Hashable, float] = field(default_factory=dict)
    forward_s: dict[int, dict[Hashable, float]] = field(default_factory=dict)

    @property
    def idle_share(self) -> float:
        """Processor seconds per second that the process used while another engine was measured."""
        return self.idle_processor_s / self.idle_wall_s if self.idle_wall_s > 0 else 0.0

    @property
    def prompt_rate(self) -> float | None:
        """Median tokens per second of the long prompt."""
        return statistics.median(self.prompt_rates.values()) if self.prompt_rates else None

    def forward_ms(self, rows: int) -> float | None:
        """Median milliseconds of a pass over ``rows`` rows."""
        samples = self.forward_s.get(rows)
        return 1000 * statistics.median(samples.values()) if samples else None

    def forward_ratio(self, rows: int) -> Ratio | None:
        """t(rows) / t(1)."""
        return paired_ratio(self.forward_s.get(rows, {}), self.forward_s.get(1, {}))

    def to_dict(self) -> dict[str, Any]:
        """Figures and samples for JSON."""
        return {
            "name": self.name,
            "version": self.version,
            "detail": self.detail,
            "modes": self.labels,
            "load_s": self.load_s,
            "peak_bytes": self.peak_bytes,
            "resident_bytes": self.resident_bytes,
            "idle_processor_share": self.idle_share,
            "prompt_tokens_per_s": self.prompt_rate,
            "prompt_tokens_per_s_samples": list(self.prompt_rates.values()),
            "forward": [
                {
                    "rows": rows,
                    "ms": self.forward_ms(rows),
                    "ratio_to_1": _plain(self.forward_ratio(rows)),
                    "samples_s": list(samples.values()),
                }
                for rows, samples in sorted(self.forward_s.items())
            ],
        }


@dataclass
class Comparison:
    """All runs of all engines over the same prompts."""

    prompts: list[str]
    prompt_tokens: int
    context_tokens: int
    rows: list[int]
    engines: list[EngineFigures] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        """Engines with their modes, Outrider's first."""
        return [label for engine in self.engines for label in engine.labels]

    @property
    def baselines(self) -> list[str]:
        """What ratios are taken to: Outrider without speculation, and each mode of each peer."""
        return [REFERENCE] + [label for engine in self.engines if engine.peer for label in engine.labels]

    @property
    def plain_baselines(self) -> list[str]:
        """Of the baselines those that do not speculate, one for each engine."""
        plain = [engine for engine in self.engines if engine.peer and engine.measured_passes and engine.labels]
        return [REFERENCE] + [engine.labels[0] for engine in plain]

    def rates(self, label: str) -> dict[Hashable, float]:
        """Decode rates by (prompt, round)."""
        return {(run.prompt, run.repeat): run.rate for run in self.runs if run.label == label}

    def ratio(self, label: str, baseline: str) -> Ratio | None:
        """How many times the baseline's decode rate."""
        return paired_ratio(self.rates(label), self.rates(baseline))

    def pooled_rate(self, label: str) -> float | None:
        """All tokens over all seconds."""
        runs = [run for run in self.runs if run.label == label]
        seconds = sum(run.rest_s for run in runs)
        return sum(run.rest_tokens for run in runs) / seconds if seconds > 0 else None

    def median_rate(self, label: str) -> float | None:
        """Median decode rate of the runs that made more than one token."""
        rates = [rate for rate in self.rates(label).values() if rate > 0]
        return statistics.median(rates) if rates else None

    def mean_acceptance_length(self, label: str) -> float | None:
        """Tokens per pass with drafts, bonus included; None without drafts."""
        runs = [run for run in self.runs if run.label == label]
        steps = sum(run.drafted_steps for run in runs)
        return 1.0 + sum(run.accepted_tokens for run in runs) / steps if steps else None

    def agreement(self, label: str) -> tuple[int, int, int]:
        """(prompts with the very tokens of Outrider without speculation, prompts, equal tokens before a difference).

        The last is the median over prompts.
        """
        reference = {run.prompt: run.token_ids for run in self.runs if run.label == REFERENCE}
        own = {run.prompt: run.token_ids for run in self.runs if run.label == label}
        shared = [name for name in own if name in reference]
        same = sum(own[name] == reference[name] for name in shared)
        equal = [equal_prefix(own[name], reference[name]) for name in shared]
        return same, len(shared), int(statistics.median(equal)) if equal else 0

    @property
    def identical(self) -> bool:
        """Whether every mode of Outrider made the same tokens as without speculation, in every round."""
        first: dict[str, tuple[int, ...]] = {}
        own = {label for engine in self.engines if not engine.peer for label in engine.labels}
        return all(first.setdefault(r.prompt, r.token_ids) == r.token_ids for r in self.runs if r.label in own)

    def to_dict(self) -> dict[str, Any]:
        """Every figure, and the runs they come from."""
        return {
            "prompts": self.prompts,
            "prompt_tokens": self.prompt_tokens,
            "context_tokens": self.context_tokens,
            "identical": self.identical,
            "decode": [self._decode_entry(label) for label in self.labels],
            "engines": [engine.to_dict() for engine in self.engines],
            "missing": [asdict(one) for one in self.missing],
            "runs": [asdict(run) for run in self.runs],
        }

    def _decode_entry(self, label: str) -> dict[str, Any]:
        same, prompts, equal = self.agreement(label)
        return {
            "engine": label,
            "tokens_per_s": self.pooled_rate(label),
            "tokens_per_s_median": self.median_rate(label),
            "ratios": {base: _plain(self.ratio(label, base)) for base in self.baselines if base != label},
            "mean_acceptance_length": self.mean_acceptance_length(label),
            "same_as_outrider_off": {"prompts": same, "of": prompts, "median_equal_tokens": equal},
        }


def _plain(ratio: Ratio | None) -> dict[str, Any] | None:
    return None if ratio is None else ratio.to_dict()
