"""One request as the engine sees it: tokens, progress, status. Knows nothing about tensors or text."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from outrider.errors import IntegrityError
from outrider.outputs import FinishReason, RequestMetrics, TokenDetail, TokenLogprobs, TokenSource
from outrider.sampling_params import SamplingParams


class Status(Enum):
    """Where a request is. A preempted request waits again, with its tokens kept and its blocks gone."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """Tokens and progress of one request.

    ``prediction_token_ids`` is what the caller expects as the output. ``token_ids`` is prompt and output together;
    ``num_computed_tokens`` of them have K/V in the target's cache; between steps a decoding request has
    ``num_computed_tokens == num_tokens - 1``, because the last token is fed together with the next drafts.
    ``noise_seed`` keys all randomness of this request. ``drafting_stopped`` is set when its drafter failed. Lower
    ``priority`` goes first; ``urgency`` is what the scheduler makes of priority and arrival.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    noise_seed: int
    max_total_tokens: int
    end_token_ids: frozenset[int] = frozenset()
    prediction_token_ids: tuple[int, ...] = ()
    arrival: int = 0
    priority: int = 0
    urgency: tuple[int, int] = (0, 0)
    status: Status = Status.WAITING
    token_ids: list[int] = field(default_factory=list)
    sources: list[TokenSource] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    details: list[TokenDetail] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    num_computed_tokens: int = 0
    drafting_stopped: bool = False
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    metrics: RequestMetrics = field(default_factory=RequestMetrics)

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)
        self.prompt_logprobs = [None]

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens committed so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens committed so far."""
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        """The output tokens committed so far."""
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def num_remaining_tokens(self) -> int:
        """Output tokens that may still be committed."""
        return self.max_total_tokens - len(self.token_ids)

    @property
    def num_preemptions(self) -> int:
        """How often it lost its blocks to another request."""
        return self.metrics.num_preemptions

    @property
    def finished(self) -> bool:
        """True once it has a ``finish_reason``."""
        return self.status is Status.FINISHED

    def is_end_token(self, token_id: int) -> bool:
        """True if committing ``token_id`` ends the request; such a token is not part of the text."""
        if token_id in self.params.stop_token_ids:
            return True
        return token_id in self.end_token_ids and not self.params.ignore_eos

    def add_text(self, token_id: int) -> str | None:
        """Add a token to the text, where the request has one; return the stop string that it completes, if any."""
        return None

    def append(self, token_id: int, source: TokenSource) -> None:
        """Commit one token. May finish the request."""
        if self.finished:
            raise IntegrityError(f"token committed to finished request {self.request_id!r}")
        stop_string = self.add_text(token_id)
        self.token_ids.append(token_id)
        self.sources.append(source)
        if self.is_end_token(token_id):
            self.finish("stop", stop_reason=token_id if token_id in self.params.stop_token_ids else None)
        elif stop_string is not None:
            self.finish("stop", stop_reason=stop_string)
        elif self.num_remaining_tokens <= 0:
            self.finish("length")

    def finish(self, reason: FinishReason, *, stop_reason: str | int | None = None, error: str | None = None) -> None:
        """End the request; the first reason given stays."""
        if self.finished:
            return
        self.status = Status.FINISHED
        self.finish_reason = reason
        self.stop_reason = stop_reason
        self.error = error
