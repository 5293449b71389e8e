"""Requests in, tokens out: the state that ``step`` works on. Synchronous; one thread at a time."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.detokenizer import Detokenizer, TokenStream
from outrider.engine.step import step
from outrider.engine.verify import verify
from outrider.errors import InvalidRequestError, counted
from outrider.models.logits import Logits
from outrider.outputs import CompletionOutput, FinishReason, RequestOutput, SpeculationStatus, StreamPiece
from outrider.request_state import RequestState
from outrider.runner.model_runner import ModelRunner
from outrider.sampling.grammar import Grammar, GrammarCompiler
from outrider.sampling.noise import Noise
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams, StructuredOutputs
from outrider.scheduler.scheduler import Scheduler
from outrider.speculation.speculator import Speculator
from outrider.verification.base import Proposal, VerifyResult

Verify = Callable[[RequestState, Proposal, Logits, Noise], VerifyResult]


@dataclass(frozen=True)
class TextTools:
    """What the engine needs of a tokenizer.

    new_stream     makes a decoder of one request's tokens, given whether special tokens are skipped
    end_token_ids  the model's end tokens
    encode         turns ``bad_words`` and predictions into tokens; None where only token ids are taken
    grammars       turns ``structured_outputs`` into grammars; None where there are none
    """

    new_stream: Callable[[bool], TokenStream]
    end_token_ids: frozenset[int] = frozenset()
    encode: Callable[[str], Sequence[int]] | None = None
    grammars: GrammarCompiler | None = None


@dataclass(frozen=True)
class EngineLimits:
    """The most tokens of one request, requests in one step, and tokens in one forward pass."""

    max_model_len: int
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512


class Engine:
    """Any number of requests in one batch, each at its own place.

    ``speculation`` says which drafter is at work, or why none is. Audits and tests replace ``verify_with`` by faulty
    verifiers and ``noise_for`` by noise that enumerates.
    """

    def __init__(
        self,
        runner: ModelRunner,
        speculator: Speculator,
        text: TextTools,
        limits: EngineLimits,
        *,
        seed: int | None = None,
        speculation: SpeculationStatus | None = None,
        verify_with: Verify = verify,
        noise_for: Callable[[int], Noise] = KeyedNoise,
    ) -> None:
        self.runner = runner
        self.speculator = speculator
        self.scheduler: Scheduler[RequestState] = Scheduler(
            runner.kv,
            speculator.budget,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
        )
        self.max_model_len = min(limits.max_model_len, runner.kv.capacity)
        self.vocab_size = runner.model.vocab_size
        self.verify = verify_with
        no_drafter = SpeculationStatus(inactive_reason="no drafter")
        self.speculation = speculation or (SpeculationStatus(speculator.name) if speculator.active else no_drafter)
        self._text = text
        self._noise_for = noise_for
        self._seeds = random.Random(seed)
        self._arrivals = itertools.count()
        self._requests: dict[str, RequestState] = {}

    @property
    def has_requests(self) -> bool:
        """True while a step would do something."""
        return self.scheduler.has_requests

    def add_request(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams, *, priority: int = 0
    ) -> RequestState:
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
        sampler = RequestSampler(
            params,
            prompt_token_ids,
            vocab_size=self.vocab_size,
            end_token_ids=params.ending_token_ids(self._text.end_token_ids),
            bad_sequences=self._bad_sequences(params.bad_words),
            grammar=self._grammar(params.structured_outputs),
        )
        noise_seed = self._seeds.getrandbits(64) if params.seed is None else params.seed
        request = RequestState(
            request_id=request_id,
            prompt_token_ids=tuple(prompt_token_ids),
            params=params,
            noise_seed=noise_seed,
            max_total_tokens=min(len(prompt_token_ids) + params.max_tokens, self.max_model_len),
            end_token_ids=self._text.end_token_ids,
            prediction_token_ids=self._prediction(params.prediction),
            arrival=next(self._arrivals),
            priority=priority,
            sampler=sampler,
            noise=self._noise_for(noise_seed),
            detokenizer=Detokenizer(self._text.new_stream(params.skip_special_tokens), params.stop),
        )
        request.metrics.arrival_time = time.monotonic()
        request.metrics.speculation = self.speculation.in_request(
            params.speculative_method, params.num_speculative_tokens
        )
        self._requests[request_id] = request
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

    def _check_method(self, method: str | None) -> None:
        if method is not None and method not in self.speculator.methods:
            raise InvalidRequestError(
                f"speculative_method={method!r} is not at work here; choose one of "
                f"{', '.join(self.speculator.methods)}, or load the engine with another speculative_config",
                param="speculative_method",
            )

    def _bad_sequences(self, words: Sequence[str]) -> list[Sequence[int]]:
        """The tokens of each word at the beginning of a text, and after a space."""
        if words and self._text.encode is None:
            raise InvalidRequestError("bad_words need a tokenizer; give bad_token_ids instead", param="bad_words")
        texts = [text for word in words for text in (word, f" {word.lstrip()}")]
        return [] if self._text.encode is None else [ids for text in texts if (ids := self._text.encode(text))]

    def _grammar(self, wanted: StructuredOutputs | None) -> Grammar | None:
        if wanted is None:
            return None
        if self._text.grammars is None:
            raise InvalidRequestError("structured_outputs need a tokenizer", param="structured_outputs")
        return self._text.grammars.grammar(wanted)

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
        if self._text.encode is None:
            raise InvalidRequestError("a prediction as text needs a tokenizer; give token ids", param="prediction")
        return tuple(self._text.encode(prediction))

    def step(self) -> list[tuple[RequestState, StreamPiece]]:
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
        completion = CompletionOutput(
            index=0,
            text=request.detokenizer.text,
            token_ids=tuple(request.output_token_ids),
            token_texts=tuple(request.detokenizer.token_texts),
            sources=tuple(request.sources),
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            logprobs=None if request.params.logprobs is None else tuple(request.logprobs),
            details=tuple(request.details) if request.params.token_details else None,
        )
        if request.finished:
            del self._requests[request_id]
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

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself, control tokens too."""
        stream = self._text.new_stream(False)
        return stream.step(token_id) + stream.finish()

    def piece(self, request: RequestState, appended: int) -> StreamPiece:
        """What the last ``appended`` tokens of ``request`` added; closes its text if it has ended."""
        if request.finished:
            self._close(request)
        first = request.num_output_tokens - appended
        texts = tuple(request.detokenizer.token_texts[first:])
        return StreamPiece(
            text="".join(texts),
            token_ids=tuple(request.output_token_ids[first:]),
            token_texts=texts,
            sources=tuple(request.sources[first:]),
            finish_reason=request.finish_reason,
            logprobs=None if request.params.logprobs is None else tuple(request.logprobs[first:]),
            details=tuple(request.details[first:]) if request.params.token_details else None,
        )

    def fail(self, request: RequestState, problem: str) -> tuple[RequestState, StreamPiece]:
        """End one request with an error; the others go on."""
        self._end(request, "error", error=problem)
        return request, self.piece(request, 0)

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless every block is free or owned by a running request, drafters' blocks too."""
        self.scheduler.check_integrity()
        self.speculator.check_integrity()

    def _end(self, request: RequestState, reason: FinishReason, *, error: str | None = None) -> None:
        self.scheduler.finish(request, reason, error=error)
        self.speculator.forget(request.request_id)
        self._close(request)

    def _close(self, request: RequestState) -> None:
        request.detokenizer.finish()
        if request.metrics.finish_time is None:
            request.metrics.finish_time = time.monotonic()
