"""What the engine gives back: texts, token ids, how each token was made, and how well drafting went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any, Literal, Protocol

from outrider.errors import counted

TokenSource = Literal["target", "accepted", "recovered", "bonus"]
"""How a token was made: by a pass without drafts (``target``), drafted and accepted (``accepted``), drawn in
place of the first rejected draft (``recovered``), or drawn after all drafts were accepted (``bonus``)."""

FinishReason = Literal["stop", "length", "abort", "error"]


class Note(Protocol):
    """Who drafted in a step, or why nobody did."""

    @property
    def drafter(self) -> str:
        """The drafter's name."""
        ...

    @property
    def why(self) -> str:
        """What spoke against drafting."""
        ...


def _added(counts: list[int], more: list[int]) -> list[int]:
    return [one + other for one, other in zip_longest(counts, more, fillvalue=0)]


@dataclass
class SpecDecodeStats:
    """Raw counts of one request or of an engine; every ratio is derived from pooled counts.

    Example: two steps with K = 3; the first accepts 3 (and emits a bonus token), the second accepts 1 (and
    emits a recovered token). Then num_spec_steps = 2, num_draft_tokens = 6, num_accepted_draft_tokens = 4,
    mean_acceptance_length = 1 + 4/2 = 3, draft_acceptance_rate = 4/6, and the two steps gained 4 + 2 = 6 tokens.
    """

    num_steps: int = 0
    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    per_step_drafted: list[int] = field(default_factory=list)
    per_step_accepted: list[int] = field(default_factory=list)
    per_step_drafter: list[str] = field(default_factory=list)
    """Which of several drafters proposed; empty where there is one only, or where none did."""
    per_step_why: list[str] = field(default_factory=list)
    """Why nothing was drafted, where the controller says so."""
    draft_seconds: float = 0.0
    """Drafting in this request's steps, for all requests of the step together."""
    verify_seconds: float = 0.0
    """The target's passes and the judging of their rows, likewise."""
    step_seconds: float = 0.0
    """Whole steps of which it is known what they would have taken without drafts."""
    plain_seconds: float = 0.0
    """What the tokens gained in these steps would have taken at K = 0, by the measured cost tables."""
    expected_plain_seconds: float = 0.0
    """The same for the tokens that were expected when the drafts were chosen."""

    def record(self, num_drafted: int, num_accepted: int, depth: int, note: Note | None = None) -> None:
        """Count one verified step; ``num_drafted`` may be 0, and in a tree is above ``depth``, that of its paths."""
        self.num_steps += 1
        self.per_step_drafted.append(num_drafted)
        self.per_step_accepted.append(num_accepted)
        self.per_step_drafter.append("" if note is None or not num_drafted else note.drafter)
        self.per_step_why.append("" if note is None or num_drafted else note.why)
        if num_drafted == 0:
            return
        self.num_spec_steps += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_draft_tokens += num_accepted
        for counts, reached in ((self.drafted_per_position, depth), (self.accepted_per_position, num_accepted)):
            counts.extend([0] * (depth - len(counts)))
            for position in range(reached):
                counts[position] += 1

    def add_times(
        self,
        gained: int,
        expected: float,
        *,
        draft_seconds: float,
        verify_seconds: float,
        step_seconds: float,
        plain_seconds: float | None,
    ) -> None:
        """Add a step that gained so many tokens; ``plain_seconds`` is what it would have taken at K = 0, if known."""
        self.draft_seconds += draft_seconds
        self.verify_seconds += verify_seconds
        if plain_seconds is not None:
            self.step_seconds += step_seconds
            self.plain_seconds += gained * plain_seconds
            self.expected_plain_seconds += (1.0 + expected) * plain_seconds

    @property
    def realised_gain(self) -> float | None:
        """How many times as fast as K = 0 it was, by the measured cost tables; None where there are none."""
        return self.plain_seconds / self.step_seconds if self.step_seconds else None

    @property
    def estimated_gain(self) -> float | None:
        """The same by the tokens that were expected when the drafts were chosen."""
        return self.expected_plain_seconds / self.step_seconds if self.step_seconds else None

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens gained per drafted step: 1 + accepted / drafts, bonus included; 1.0 without drafts."""
        return 1.0 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else 1.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted; 0.0 without drafts."""
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def acceptance_histogram(self) -> list[int]:
        """Entry a: drafted steps in which exactly a drafts were accepted."""
        counts = [0] * (1 + max(self.per_step_accepted, default=0)) if self.num_spec_steps else []
        for drafted, accepted in zip(self.per_step_drafted, self.per_step_accepted, strict=True):
            if drafted:
                counts[accepted] += 1
        return counts

    @classmethod
    def pooled(cls, parts: Iterable[SpecDecodeStats]) -> SpecDecodeStats:
        """The counts of all ``parts`` together."""
        total = cls()
        for part in parts:
            total.num_steps += part.num_steps
            total.num_spec_steps += part.num_spec_steps
            total.num_draft_tokens += part.num_draft_tokens
            total.num_accepted_draft_tokens += part.num_accepted_draft_tokens
            total.drafted_per_position = _added(total.drafted_per_position, part.drafted_per_position)
            total.accepted_per_position = _added(total.accepted_per_position, part.accepted_per_position)
            total.per_step_drafted += part.per_step_drafted
            total.per_step_accepted += part.per_step_accepted
            total.per_step_drafter += part.per_step_drafter
            total.per_step_why += part.per_step_why
            total.draft_seconds += part.draft_seconds
            total.verify_seconds += part.verify_seconds
            total.step_seconds += part.step_seconds
            total.plain_seconds += part.plain_seconds
            total.expected_plain_seconds += part.expected_plain_seconds
        return total

    def to_dict(self, *, detailed: bool = False) -> dict[str, Any]:
        """The keys that vLLM's per-request metrics use."""
        summary: dict[str, Any] = {
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "acceptance_histogram": self.acceptance_histogram,
            "num_spec_steps": self.num_spec_steps,
            "num_accepted_draft_tokens": self.num_accepted_draft_tokens,
            "num_draft_tokens": self.num_draft_tokens,
            "num_spec_tokens": max(self.per_step_drafted, default=0),
            "draft_ms": 1e3 * self.draft_seconds,
            "verify_ms": 1e3 * self.verify_seconds,
            "estimated_gain": self.estimated_gain,
            "realised_gain": self.realised_gain,
        }
        if detailed:
            summary["per_step_accepted"] = list(self.per_step_accepted)
            summary["per_step_drafted"] = list(self.per_step_drafted)
            summary["per_step_drafter"] = list(self.per_step_drafter)
            summary["per_step_why"] = list(self.per_step_why)
        return summary


@dataclass(frozen=True)
class SpeculationStatus:
    """Which drafter is at work, or why none is.

    ``method`` is the drafter's name, None if none was loaded. ``num_speculative_tokens`` is the most tokens drafted per
    step, None if no setting limits it. ``inactive_reason`` says why nothing is drafted, None while drafts are made.
    """

    method: str | None = None
    num_speculative_tokens: int | None = None
    inactive_reason: str | None = None

    @property
    def active(self) -> bool:
        """True while drafts are made."""
        return self.inactive_reason is None

    def in_request(self, method: str | None, num_speculative_tokens: int | None) -> SpeculationStatus:
        """The status in a request with this ``speculative_method`` and ``num_speculative_tokens``."""
        if not self.active:
            return self
        if method == "off" or num_speculative_tokens == 0:
            return replace(self, inactive_reason="turned off in this request")
        limits = [limit for limit in (self.num_speculative_tokens, num_speculative_tokens) if limit is not None]
        return replace(self, method=method or self.method, num_speculative_tokens=min(limits, default=None))

    def describe(self) -> str:
        """One line for people, such as ``suffix, up to 15 tokens per step``."""
        if not self.active:
            return f"inactive: {self.inactive_reason}"
        most = self.num_speculative_tokens
        return str(self.method) if most is None else f"{self.method}, up to {counted(most, 'token')} per step"

    __str__ = describe

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"active": self.active, "description": self.describe(), **asdict(self)}


@dataclass
class RequestMetrics:
    """Times in seconds on the monotonic clock, and the speculation counts, of one request."""

    arrival_time: float = 0.0
    first_token_time: float | None = None
    finish_time: float | None = None
    speculative_decoding: SpecDecodeStats = field(default_factory=SpecDecodeStats)
    speculation: SpeculationStatus = SpeculationStatus(inactive_reason="no drafter")
    num_cached_tokens: int = 0
    """Prompt tokens whose K/V were there already, from earlier requests."""
    num_preemptions: int = 0

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural log-probabilities at one token's place.

    ``rank`` is 1 for the most probable token, ties by lowest id. ``top`` holds (token id, logprob) of the most probable
    tokens, as many as were asked for and have a chance at all.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class RejectedDraft:
    """The draft whose place a recovered token took: in a tree the first of those tried there."""

    token_id: int
    text: str
    target_prob: float
    draft_prob: float | None
    acceptance_prob: float


@dataclass(frozen=True)
class TokenDetail:
    """How one token came about.

    ``step`` counts the request's passes that emitted something, from 1; ``position`` the tokens of this step before it,
    which for a drafted token is its place in the draft. ``target_prob`` is its probability by the request's
    distribution (greedy requests: softmax of the edited logits), ``draft_prob`` that by the draft's distribution or a
    retrieval's estimate, None if the draft says nothing about it. ``acceptance_prob`` is None for a token that was not
    drafted, else min(1, p / q) for one drawn from its distribution q, p for a point mass, 1 or 0 for greedy requests:
    what the token has by itself. Verification by block, and drafts coupled to the target's noise, accept more.
    ``rejected`` is set if recovered.
    """

    token_id: int
    source: TokenSource
    step: int
    position: int
    target_prob: float
    draft_prob: float | None = None
    acceptance_prob: float | None = None
    rejected: RejectedDraft | None = None

    def to_dict(self, text: str) -> dict[str, Any]:
        """As JSON has it; ``text`` is what became certain with the token."""
        return {"text": text, **asdict(self)}


@dataclass(frozen=True)
class StreamPiece:
    """What one step added to one request.

    ``token_texts[i]`` is the text that became certain with ``token_ids[i]`` (empty while a character is
    incomplete or could still become a stop string); ``text`` is all of it joined. ``sources`` runs beside,
    and so do ``logprobs`` and ``details`` if they were asked for. The last piece of a stream has a
    ``finish_reason``, and as ``output`` the whole answer with its metrics; both are None in the pieces before.
    """

    text: str
    token_ids: tuple[int, ...]
    token_texts: tuple[str, ...]
    sources: tuple[TokenSource, ...]
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    details: tuple[TokenDetail, ...] | None = None
    output: RequestOutput | None = None


@dataclass
class CompletionOutput:
    """One answer to one prompt."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    token_texts: tuple[str, ...]
    sources: tuple[TokenSource, ...]
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; None for the model's own end token or the length."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each of ``token_ids``; None unless asked for."""
    details: tuple[TokenDetail, ...] | None = None
    """The same with ``token_details``."""


@dataclass
class RequestOutput:
    """One prompt, its answers and its metrics. ``error`` is set when the request, or one of its answers, failed.

    ``prompt_logprobs``, if asked for, has an entry for each prompt token; the first is None, as nothing precedes it.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    finished: bool = True
    error: str | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
