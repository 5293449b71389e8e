"""What chats and completions have in common: how a request is run, and what is said about all of its answers."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Message, Receive, Scope, Send

from outrider.engine.async_engine import Submission
from outrider.outputs import CompletionOutput, RequestOutput, SpecDecodeStats, StreamPiece
from outrider.server.errors import ApiError, api_error, json_response

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What a request wants said beside the text."""

    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    detailed_metrics: bool = False
    predicted: bool = False
    ping_s: float = 15.0


@dataclass
class Counts:
    """Tokens so far; each prompt counts once, however many answers it has."""

    prompt_tokens: int
    answers_per_prompt: int
    completion_tokens: int = 0

    def usage(self, outputs: Sequence[RequestOutput | None] = (), *, predicted: bool = False) -> dict[str, Any]:
        """OpenAI's usage object; at the end, with ``outputs``, also what was cached and what became of a prediction."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
        if outputs:
            cached = sum(output.metrics.num_cached_tokens for output in outputs[:: self.answers_per_prompt] if output)
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        if outputs and predicted:
            stats = _pooled(outputs)
            accepted = stats.num_accepted_draft_tokens
            usage["completion_tokens_details"] = {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": stats.num_draft_tokens - accepted,
            }
        return usage


class Form(Protocol):
    """How one kind of answer is written."""

    object_name: str
    chunk_name: str

    def choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        """A whole answer as an entry of ``choices``."""
        ...

    def chunk_choice(self, index: int, piece: StreamPiece) -> dict[str, Any]:
        """What one step added, as an entry of ``choices``."""
        ...

    def root(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """What a whole response says beside its choices."""
        ...


@dataclass
class Reply:
    """One request under way, and how it is to be answered."""

    answers: Submission
    form: Form
    model: str
    counts: Counts
    options: Options
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    async def whole(self, request: Request) -> Response:
        """One JSON object once all is there. If the client goes away first, the request is aborted."""
        reading = asyncio.create_task(self.answers.result())
        leaving = asyncio.create_task(_gone(request.receive))
        try:
            await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                return Response(status_code=499)  # nobody is there to read it
            outputs = reading.result()
        finally:
            self.answers.abort()
            await _end(reading, leaving)
        if (error := self._failure()) is not None:
            raise error
        self.counts.completion_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        choices = [
            self.form.choice(index, output) | _details(output.outputs[0]) for index, output in enumerate(outputs)
        ]
        body = self._envelope(self.form.object_name, choices)
        body["usage"] = self.counts.usage(outputs, predicted=self.options.predicted)
        return json_response(body | self.form.root(outputs) | self._metrics())

    def streamed(self) -> Response:
        """Server-sent events, a chunk for each step."""
        return EventStream(self._events(), self.answers)

    async def _events(self) -> AsyncIterator[bytes]:
        options = self.options
        last: dict[str, Any] | None = None  # the end of it all, held back until the figures can go with it
        while not self.answers.finished:
            if not await self.answers.wait(options.ping_s):
                yield b": ping\n\n"
                continue
            try:
                index, piece = await anext(self.answers)
            except StopAsyncIteration:
                break
            if piece.finish_reason == "error":
                break
            self.counts.completion_tokens += len(piece.token_ids)
            last = self._envelope(self.form.chunk_name, [self.form.chunk_choice(index, piece) | _details(piece)])
            if options.include_usage or options.continuous_usage:
                last["usage"] = self.counts.usage() if options.continuous_usage else None
            if not self.answers.finished:
                yield _event(last)
                last = None
        if (error := self._failure()) is not None:
            yield _event(error.body())
        else:
            usage = self.counts.usage(self.answers.outputs, predicted=options.predicted)
            if options.include_usage:
                if last is not None:
                    yield _event(last)
                last = self._envelope(self.form.chunk_name, []) | {"usage": usage}
            if last is not None:
                yield _event(last | self._metrics())
        yield b"data: [DONE]\n\n"

    def _envelope(self, object_name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        prefix = "chatcmpl" if object_name.startswith("chat") else "cmpl"
        return {
            "id": f"{prefix}-{self.id}",
            "object": object_name,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _metrics(self) -> dict[str, Any]:
        done = [output for output in self.answers.outputs if output is not None]
        stats = _pooled(done).to_dict(detailed=self.options.detailed_metrics)
        return {"metrics": {"speculation": done[0].metrics.speculation.to_dict(), "speculative_decoding": stats}}

    def _failure(self) -> ApiError | None:
        """The first answer that failed, as an error."""
        for output in self.answers.outputs:
            if output is not None and output.error is not None:
                status = 500 if self.answers.refusing is None else 503
                return ApiError(status, f"the request failed: {output.error}", code="request_failed")
        return None


def _details(tokens: CompletionOutput | StreamPiece) -> dict[str, Any]:
    """``token_details`` of a choice, if they were asked for."""
    if tokens.details is None:
        return {}
    told = zip(tokens.details, tokens.token_texts, strict=True)
    return {"token_details": [detail.to_dict(text) for detail, text in told]}


class EventStream(Response):
    """Sends events as they come. When it ends, for whatever reason, so does the request behind it."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], answers: Submission) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until all is said or the client has gone."""
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._answers.abort()
            await _end(sending, leaving)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except OSError:
            return  # the client has gone
        except Exception as error:
            event = _event(api_error(error).body()) + b"data: [DONE]\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _event(content: dict[str, Any]) -> bytes:
    # A lone surrogate can not come out of a tokenizer, but may come back from what a client sent.
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode("utf-8", "replace")


async def _gone(receive: Receive) -> None:
    """Returns when the client has left."""
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            return


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _pooled(outputs: Sequence[RequestOutput | None]) -> SpecDecodeStats:
    return SpecDecodeStats.pooled(output.metrics.speculative_decoding for output in outputs if output is not None)
