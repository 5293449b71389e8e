"""The state of one request: tokens, progress, status. Knows nothing about tensors or text."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from outrider.errors import IntegrityError
from outrider.outputs import FinishReason, RequestMetrics, TokenDetail, TokenLogprobs, TokenSource
from outrider.sampling_params import SamplingParams


class Status(Enum):
    """The phase of a request. A preempted request is WAITING again: it keeps its tokens and has no blocks."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """The tokens and progress of one request.

    prediction_token_ids  the output that the caller expects; drafts can be taken from it
    max_total_tokens      limit of prompt and output tokens together
    noise_seed            seed of all randomness of this request
    token_ids             prompt and output tokens
    num_computed_tokens   how many of ``token_ids`` have K/V in the target's cache. Between steps a decoding request has
                          ``num_computed_tokens == num_tokens - 1``, because the last token is computed with the next
                          drafts
    drafting_stopped      True after its drafter failed
    priority, arrival     a lower number is scheduled first; ``urgency`` is the scheduler's sort key made of both
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
        """Number of output tokens that can still be committed."""
        return self.max_total_tokens - len(self.token_ids)

    @property
    def num_preemptions(self) -> int:
        """Number of times that the scheduler preempted this request."""
        return self.metrics.num_preemptions

    @property
    def finished(self) -> bool:
        """True after ``finish``; then ``finish_reason`` is set."""
        return self.status is Status.FINISHED

    def is_end_token(self, token_id: int) -> bool:
        """True if committing ``token_id`` ends the request. Such a token is not part of the text."""
        if token_id in self.params.stop_token_ids:
            return True
        return token_id in self.end_token_ids and not self.params.ignore_eos

    def add_text(self, token_id: int) -> str | None:
        """Add a token to the text and return the stop string that it completes; None if there is none.

        This class has no text. The engine's subclass overrides the method.
        """
        return None

    def append(self, token_id: int, source: TokenSource) -> None:
        """Commit one token, and finish the request if the token ends it.

        Raises ``IntegrityError`` if the request is finished already.
        """
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
        """End the request. No effect if it is finished already: the first reason stays."""
        if self.finished:
            return
        self.status = Status.FINISHED
        self.finish_reason = reason
        self.stop_reason = stop_reason
        self.error = error
