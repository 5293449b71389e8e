"""Requests in, tokens out: the state that ``step`` works on. Synchronous; one thread at a time."""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from outrider.drafters.base import Drafter
from outrider.engine.detokenizer import Detokenizer, TokenStream
from outrider.engine.step import step
from outrider.engine.verify import verify
from outrider.errors import InvalidRequestError, counted
from outrider.outputs import CompletionOutput, FinishReason, RequestOutput, SpeculationStatus, StreamPiece
from outrider.request import Request
from outrider.runner.model_runner import ModelRunner
from outrider.sampling.grammar import Grammar, GrammarCompiler
from outrider.sampling.noise import Noise
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams, StructuredOutputs
from outrider.scheduler.scheduler import Scheduler
from outrider.scheduler.speculation import SpeculationController
from outrider.verification.base import VerifyResult

logger = logging.getLogger(__name__)

Verify = Callable[..., VerifyResult]
"""Called as ``verify`` is."""


class Engine:
    """Any number of requests in one batch, each at its own place.

    ``speculation`` says which drafter is at work, or why none is. ``verify_with`` and ``noise_for`` are there for
    audits, which swap in faulty verifiers and noise that enumerates. ``new_stream`` makes a decoder of a
    request's tokens, given whether special ones are skipped. ``encode`` turns the words of ``bad_words`` into tokens,
    and ``grammars`` what ``structured_outputs`` asks for into grammars over them.
    """

    def __init__(
        self,
        runner: ModelRunner,
        drafter: Drafter | None,
        controller: SpeculationController,
        *,
        new_stream: Callable[[bool], TokenStream],
        max_model_len: int,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        end_token_ids: frozenset[int] = frozenset(),
        encode: Callable[[str], Sequence[int]] | None = None,
        grammars: GrammarCompiler | None = None,
        seed: int | None = None,
        speculation: SpeculationStatus | None = None,
        verify_with: Verify = verify,
        noise_for: Callable[[int], Noise] = KeyedNoise,
    ) -> None:
        self.runner = runner
        self.drafter = drafter
        self.scheduler = Scheduler(
            runner.kv, controller, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )
        self.controller = controller
        self.max_model_len = min(max_model_len, runner.kv.capacity)
        self.vocab_size = runner.model.vocab_size
        self.verify = verify_with
        no_drafter = SpeculationStatus(inactive_reason="no drafter")
        self.speculation = speculation or (no_drafter if drafter is None else SpeculationStatus(drafter.name))
        self._new_stream = new_stream
        self._encode = encode
        self._grammars = grammars
        self._noise_for = noise_for
        self._end_token_ids = end_token_ids
        self._seeds = random.Random(seed)
        self._arrivals = itertools.count()
        self._requests: dict[str, Request] = {}
        self._noises: dict[str, Noise] = {}
        self._samplers: dict[str, RequestSampler] = {}
        self._detokenizers: dict[str, Detokenizer] = {}

    @property
    def has_requests(self) -> bool:
        """True while a step would do something."""
        return self.scheduler.has_requests

    def add_request(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams, *, priority: int = 0
    ) -> Request:
        """Queue a request; lower ``priority`` goes first.

        Raises ``InvalidRequestError`` if it can not be served; nothing is kept then.
        """
        if request_id in self._requests:
            raise InvalidRequestError(f"request id {request_id!r} is in use; choose another", param="request_id")
        if params.n != 1:
            raise InvalidRequestError(
                f"n={params.n}, but a request has one answer; add one request for each", param="n"
            )
        self.check_prompt(prompt_token_ids)
        self._check_method(params.speculative_method)
        request = Request(
            request_id=request_id,
            prompt_token_ids=tuple(prompt_token_ids),
            params=params,
            noise_seed=self._seeds.getrandbits(64) if params.seed is None else params.seed,
            max_total_tokens=min(len(prompt_token_ids) + params.max_tokens, self.max_model_len),
            end_token_ids=self._end_token_ids,
            prediction_token_ids=self._prediction(params.prediction),
            arrival=next(self._arrivals),
            priority=priority,
        )
        sampler = RequestSampler(
            params,
            prompt_token_ids,
            vocab_size=self.vocab_size,
            end_token_ids=request.ending_token_ids,
            bad_sequences=self._bad_sequences(params.bad_words),
            grammar=self._grammar(params.structured_outputs),
        )
        request.metrics.arrival_time = time.monotonic()
        request.metrics.speculation = self.speculation.in_request(
            params.speculative_method, params.num_speculative_tokens
        )
        self._requests[request_id] = request
        self._noises[request_id] = self._noise_for(request.noise_seed)
        self._samplers[request_id] = sampler
        self._detokenizers[request_id] = Detokenizer(self._new_stream(params.skip_special_tokens), params.stop)
        self.scheduler.add(request)
        return request

    def check_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        """Raise ``InvalidRequestError`` if this engine can not serve the prompt: empty, too long, or no such token."""
        count = len(prompt_token_ids)
        if not count:
            raise InvalidRequestError("the prompt is empty; give at least one token", param="prompt")
        if count >= self.max_model_len:
            raise InvalidRequestError(
                f"the prompt has {counted(count, 'token')}, but the context holds {self.max_model_len} and one must "
                f"be left to generate; shorten the prompt or raise max_model_len or kv_cache_memory",
                param="prompt",
            )
        for place, token_id in enumerate(prompt_token_ids):
            if not 0 <= token_id < self.vocab_size:
                raise InvalidRequestError(
                    f"prompt token {place} is {token_id}, but ids go from 0 to {self.vocab_size - 1}", param="prompt"
                )

    @property
    def speculative_methods(self) -> tuple[str, ...]:
        """What a request may choose as its ``speculative_method``."""
        drafter = self.drafter
        if drafter is None:
            return ("off",)
        methods: tuple[str, ...] = getattr(drafter, "methods", (drafter.name,))
        return ("off", *methods)

    def _check_method(self, method: str | None) -> None:
        if method is not None and method not in self.speculative_methods:
            raise InvalidRequestError(
                f"speculative_method={method!r} is not at work here; choose one of "
                f"{', '.join(self.speculative_methods)}, or load the engine with another speculative_config",
                param="speculative_method",
            )

    def _bad_sequences(self, words: Sequence[str]) -> list[Sequence[int]]:
        """The tokens of each word at the beginning of a text, and after a space."""
        if words and self._encode is None:
            raise InvalidRequestError("bad_words need a tokenizer; give bad_token_ids instead", param="bad_words")
        texts = [text for word in words for text in (word, f" {word.lstrip()}")]
        return [] if self._encode is None else [ids for text in texts if (ids := self._encode(text))]

    def _grammar(self, wanted: StructuredOutputs | None) -> Grammar | None:
        if wanted is None:
            return None
        if self._grammars is None:
            raise InvalidRequestError("structured_outputs need a tokenizer", param="structured_outputs")
        return self._grammars.grammar(wanted)

    def _prediction(self, prediction: str | Sequence[int] | None) -> tuple[int, ...]:
        if prediction is None:
            return ()
        if not isinstance(prediction, str):
            for token_id in prediction:
                if token_id >= self.vocab_size:
                    raise InvalidRequestError(
                        f"prediction holds token id {token_id}, but ids go from 0 to {self.vocab_size - 1}",
                        param="prediction",
                    )
            return tuple(prediction)
        if self._encode is None:
            raise InvalidRequestError("a prediction as text needs a tokenizer; give token ids", param="prediction")
        return tuple(self._encode(prediction))

    def step(self) -> list[tuple[Request, StreamPiece]]:
        """Advance every scheduled request once; return what each one that gained tokens, or ended, gained."""
        return step(self) if self.has_requests else []

    def abort(self, request_id: str) -> bool:
        """End a request at any phase; its blocks come back at once. False if it is not running or waiting."""
        request = self._requests.get(request_id)
        if request is None or request.finished:
            return False
        self._end(request, "abort")
        return True

    def take_output(self, request_id: str, prompt: str | None = None) -> RequestOutput:
        """The output of a request so far; a finished request is forgotten with this call."""
        request = self._requests[request_id]
        detokenizer = self._detokenizers[request_id]
        completion = CompletionOutput(
            index=0,
            text=detokenizer.text,
            token_ids=tuple(request.output_token_ids),
            token_texts=tuple(detokenizer.token_texts),
            sources=tuple(request.sources),
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            logprobs=None if request.params.logprobs is None else tuple(request.logprobs),
            details=tuple(request.details) if request.params.token_details else None,
        )
        if request.finished:
            del self._requests[request_id], self._detokenizers[request_id]
            self._noises.pop(request_id, None)
            self._samplers.pop(request_id, None)
            self.controller.forget(request_id)
        return RequestOutput(
            request_id=request_id,
            prompt=prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[completion],
            metrics=request.metrics,
            finished=request.finished,
            error=request.error,
            prompt_logprobs=None if request.params.prompt_logprobs is None else tuple(request.prompt_logprobs),
        )

    def noise(self, request: Request) -> Noise:
        """The request's own randomness in its coming step."""
        return self._noises[request.request_id].at_step(request.num_tokens)

    def sampler(self, request: Request) -> RequestSampler:
        """The request's distribution at any of its places."""
        return self._samplers[request.request_id]

    def detokenize(self, request: Request, token_id: int) -> str | None:
        """Add one token to the request's text; return the stop string that it completes, if any."""
        return self._detokenizers[request.request_id].push(
            token_id,
            hidden=request.is_end_token(token_id),
            may_stop=request.num_output_tokens + 1 >= request.params.min_tokens,
        )

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself, control tokens too."""
        stream = self._new_stream(False)
        return stream.step(token_id) + stream.finish()

    def piece(self, request: Request, appended: int) -> StreamPiece:
        """What the last ``appended`` tokens of ``request`` added; closes its text if it has ended."""
        if request.finished:
            self._close(request)
        first = request.num_output_tokens - appended
        texts = tuple(self._detokenizers[request.request_id].token_texts[first:])
        return StreamPiece(
            text="".join(texts),
            token_ids=tuple(request.output_token_ids[first:]),
            token_texts=texts,
            sources=tuple(request.sources[first:]),
            finish_reason=request.finish_reason,
            logprobs=None if request.params.logprobs is None else tuple(request.logprobs[first:]),
            details=tuple(request.details[first:]) if request.params.token_details else None,
        )

    def fail(self, request: Request, problem: str) -> tuple[Request, StreamPiece]:
        """End one request with an error; the others go on."""
        self._end(request, "error", error=problem)
        return request, self.piece(request, 0)

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Tell the drafter what became of its proposal; one that fails here drafts no more for this request."""
        if self.drafter is None:
            return
        try:
            self.drafter.observe(request, num_drafted, num_accepted)
        except Exception as error:
            self.stop_drafting(request, f"{type(error).__name__}: {error}")

    def forget_drafts(self, request: Request) -> None:
        """Drop the drafter's state of a request; a drafter that fails even here is only logged."""
        if self.drafter is None:
            return
        try:
            self.drafter.forget(request.request_id)
        except Exception:
            logger.exception("drafter %s failed to forget request %s", self.drafter.name, request.request_id)

    def stop_drafting(self, request: Request, problem: str) -> None:
        """Go on without speculation for this request, and say so in its metrics."""
        name = "none" if self.drafter is None else self.drafter.name
        logger.warning("request %s goes on without speculation: drafter %s %s", request.request_id, name, problem)
        request.drafting_stopped = True
        request.metrics.speculation = replace(
            request.metrics.speculation, inactive_reason=f"drafter {name!r}: {problem}"
        )
        self.forget_drafts(request)

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless every block is free or owned by a running request."""
        self.scheduler.check_integrity()

    def _end(self, request: Request, reason: FinishReason, *, error: str | None = None) -> None:
        self.scheduler.finish(request, reason, error=error)
        self.forget_drafts(request)
        self._close(request)

    def _close(self, request: Request) -> None:
        self._detokenizers[request.request_id].finish()
        if request.metrics.finish_time is None:
            request.metrics.finish_time = time.monotonic()
