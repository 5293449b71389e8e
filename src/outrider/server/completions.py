"""``POST /v1/completions``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response

from outrider.engine.async_engine import Job
from outrider.engine.parallel_sampling import one_each
from outrider.models.tokenizer import Tokenizer
from outrider.outputs import RequestOutput, StreamPiece, TokenLogprobs
from outrider.server.answer import Counts, Reply
from outrider.server.errors import bad_request
from outrider.server.fields import format_field, named, sampling_params, structured_outputs
from outrider.server.logprobs import completion_logprobs, prompt_logprobs
from outrider.server.schemas import ERRORS, CompletionRequest, Prompt
from outrider.server.serving import Ready, serving

router = APIRouter()


@dataclass(frozen=True)
class _PromptText:
    """A prompt, its text, and what each of its tokens adds to that."""

    token_ids: Sequence[int]
    text: str = ""
    texts: Sequence[str] = ()


@router.post("/v1/completions", responses=ERRORS)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue one prompt or several."""
    ready = serving(request).ready()
    model = ready.check_model(body.model)
    with named(structured_outputs=format_field(body)):
        prompts, jobs = await asyncio.to_thread(_jobs, ready, body)
        answers = await ready.engine.submit(jobs, priority=body.priority or 0)
    form = _CompletionForm(ready.tokenizer, prompts, body)
    counts = Counts(sum(len(prompt.token_ids) for prompt in prompts), len(jobs) // len(prompts))
    reply = Reply(answers, form, model, counts, ready.options(body))
    return reply.streamed() if body.stream else await reply.whole(request)


def _jobs(ready: Ready, body: CompletionRequest) -> tuple[list[_PromptText], list[Job]]:
    if body.echo and body.stream and body.logprobs is not None:
        raise bad_request("echo with logprobs can not be streamed; leave stream out", "echo")
    if body.max_tokens == 0 and not body.echo:
        raise bad_request("max_tokens=0 needs echo=true, which gives the prompt back", "max_tokens")
    if body.max_tokens == 0 and body.token_details:
        raise bad_request("max_tokens=0 makes no token that token_details could tell of", "token_details")
    if body.max_tokens == 0 and body.stream:
        raise bad_request("max_tokens=0 can not be streamed; leave stream out", "max_tokens")
    wants_prompt = body.echo and body.logprobs is not None
    params = sampling_params(
        body,
        ready.methods,
        ready.max_drafts,
        # The pass that scores the prompt gives a token for nothing; it is left out of the answer.
        max_tokens=1 if body.max_tokens == 0 else None,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if wants_prompt and body.prompt_logprobs is None else body.prompt_logprobs,
        structured_outputs=structured_outputs(body),
    )
    special = True if body.add_special_tokens is None else body.add_special_tokens
    prompts = []
    for place, prompt in enumerate(many := _many(body.prompt)):
        where = "prompt" if len(many) == 1 else f"prompt[{place}]"
        ids = ready.encode(prompt, where, add_special_tokens=special) if isinstance(prompt, str) else prompt
        ready.check_length(ids, where)
        prompts.append(_echoed(ready.tokenizer, ids, prompt) if body.echo else _PromptText(ids))
    return prompts, [(prompt.token_ids, each) for prompt in prompts for each in one_each(params)]


def _many(prompt: Prompt) -> Sequence[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise bad_request("prompt is an empty list; give at least one token", "prompt")
    if isinstance(prompt[0], int):
        return [prompt]
    return cast("list[str | list[int]]", prompt)


def _echoed(tokenizer: Tokenizer, token_ids: Sequence[int], prompt: str | Sequence[int]) -> _PromptText:
    """The prompt with its text: as it was given, or what its tokens say. Added control tokens are no part of it."""
    stream = tokenizer.stream(skip_special_tokens=isinstance(prompt, str))
    texts = [stream.step(token_id) for token_id in token_ids]
    texts[-1] += stream.finish()
    return _PromptText(token_ids, prompt if isinstance(prompt, str) else "".join(texts), texts)


class _CompletionForm:
    """Writes answers as texts."""

    object_name = chunk_name = "text_completion"

    def __init__(self, tokenizer: Tokenizer, prompts: Sequence[_PromptText], body: CompletionRequest) -> None:
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._n = body.n or 1
        self._echo = bool(body.echo)
        self._logprobs = body.logprobs is not None
        self._token_ids = bool(body.return_token_ids)
        self._only_prompt = body.max_tokens == 0
        self._prompt_logprobs = body.prompt_logprobs is not None
        self._lengths: dict[int, int] = {}
        self._of_prompt: Sequence[TokenLogprobs | None] = ()

    def choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        """``{"text": …}``"""
        completion, prompt = output.outputs[0], self._prompts[index // self._n]
        text, texts, ids = completion.text, list(completion.token_texts), list(completion.token_ids)
        logprobs: list[TokenLogprobs | None] = list(completion.logprobs or ())
        if index % self._n == 0:
            # Only the first of several answers to one prompt was asked for the prompt's log-probabilities.
            self._of_prompt = output.prompt_logprobs or ()
        if self._only_prompt:
            text, texts, ids, logprobs = "", [], [], []
        if self._echo:
            text, texts, ids = prompt.text + text, [*prompt.texts, *texts], [*prompt.token_ids, *ids]
            logprobs = [*self._of_prompt, *logprobs]
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": completion_logprobs(self._tokenizer, logprobs, ids, _offsets(texts))
            if self._logprobs
            else None,
            "finish_reason": "length" if self._only_prompt else completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if self._prompt_logprobs:
            choice["prompt_logprobs"] = prompt_logprobs(self._tokenizer, self._of_prompt)
        if self._token_ids:
            choice["token_ids"] = [] if self._only_prompt else list(completion.token_ids)
            choice["prompt_token_ids"] = list(prompt.token_ids)
        return choice

    def chunk_choice(self, index: int, piece: StreamPiece) -> dict[str, Any]:
        """``{"text": …}``; with ``echo`` the first begins with the prompt."""
        prompt, first = self._prompts[index // self._n], index not in self._lengths
        echoed = prompt.text if first and self._echo else ""
        begin = self._lengths.get(index, 0) + len(echoed)
        offsets = _offsets(piece.token_texts, begin)
        self._lengths[index] = begin + len(piece.text)
        choice: dict[str, Any] = {
            "index": index,
            "text": echoed + piece.text,
            "logprobs": completion_logprobs(self._tokenizer, piece.logprobs or (), piece.token_ids, offsets)
            if self._logprobs
            else None,
            "finish_reason": piece.finish_reason,
        }
        if self._token_ids:
            choice["token_ids"] = list(piece.token_ids)
            if first:
                choice["prompt_token_ids"] = list(prompt.token_ids)
        return choice

    def root(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """Nothing more."""
        return {}


def _offsets(texts: Sequence[str], start: int = 0) -> list[int]:
    """Where each text begins, in characters."""
    return list(accumulate((len(text) for text in texts), initial=start))[: len(texts)]
