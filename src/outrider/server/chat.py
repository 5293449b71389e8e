"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from outrider.engine.async_engine import Job
from outrider.engine.parallel_sampling import one_each
from outrider.models.tokenizer import Tokenizer
from outrider.outputs import RequestOutput, StreamPiece, TokenLogprobs
from outrider.server.answer import Counts, Reply
from outrider.server.errors import bad_request
from outrider.server.fields import format_field, named, sampling_params, structured_outputs
from outrider.server.logprobs import chat_logprobs, prompt_logprobs
from outrider.server.message import MessageParser
from outrider.server.reasoning import ReasoningParser, after_thoughts, is_open
from outrider.server.schemas import ERRORS, ChatCompletionRequest, Message
from outrider.server.serving import Ready, serving
from outrider.server.tool_parser import CallDelta
from outrider.server.tools import ToolUse, tool_use

router = APIRouter()

_RESERVED = ("messages", "tools", "add_generation_prompt")
"""Template variables that have fields of their own."""


@router.post("/v1/chat/completions", responses=ERRORS)
async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
    """Answer a conversation."""
    ready = serving(request).ready()
    model = ready.check_model(body.model)
    with named(**_names(body)):
        jobs, reading = await asyncio.to_thread(_jobs, ready, body)
        answers = await ready.engine.submit(jobs, priority=body.priority or 0)
    form = _ChatForm(ready.tokenizer, reading, logprobs=bool(body.logprobs), token_ids=bool(body.return_token_ids))
    form.prompt_token_ids = jobs[0][0]
    reply = Reply(answers, form, model, Counts(len(jobs[0][0]), len(jobs)), ready.options(body))
    return reply.streamed() if body.stream else await reply.whole(request)


def _names(body: ChatCompletionRequest) -> dict[str, str]:
    """Sampling parameters -> the fields that they come from here, where those have other names."""
    return {
        "logprobs": "top_logprobs",
        "structured_outputs": "tools" if body.tools else format_field(body),
        "max_tokens": "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens",
        "prompt": "messages",
    }


@dataclass(frozen=True)
class _Reading:
    """How answers are to be read. ``thinking``: whether they may begin with thoughts; ``opened``: the prompt has."""

    tools: ToolUse | None
    thinking: bool
    opened: bool

    @property
    def splits(self) -> bool:
        """Whether there is anything to tell from text."""
        return self.thinking or self.tools is not None

    def parser(self) -> MessageParser:
        """A parser for one answer."""
        return MessageParser(
            ReasoningParser(opened=self.opened) if self.thinking else None,
            None if self.tools is None else self.tools.parser(),
        )


def _jobs(ready: Ready, body: ChatCompletionRequest) -> tuple[list[Job], _Reading]:
    tools = tool_use(body, ready.tokenizer)
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs need logprobs=true", "top_logprobs")
    variables = body.chat_template_kwargs or {}
    for name in _RESERVED:
        if name in variables:
            raise bad_request(f"chat_template_kwargs may not hold {name!r}", "chat_template_kwargs")
    if tools is not None:
        variables = variables | {"tools": tools.template_tools}
    text = ready.tokenizer.apply_chat_template(template_messages(body.messages), **variables)
    token_ids = ready.encode(text, "messages", add_special_tokens=False)
    reading = _Reading(tools, ready.reasoning, ready.reasoning and is_open(text))
    wanted = structured_outputs(body) if tools is None else tools.grammar
    params = sampling_params(
        body,
        ready.methods,
        ready.max_drafts,
        max_tokens=_max_tokens(body, ready.max_model_len - len(token_ids)),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        structured_outputs=after_thoughts(wanted) if reading.opened else wanted,
    )
    return [(token_ids, each) for each in one_each(params)], reading


def _max_tokens(body: ChatCompletionRequest, room: int) -> int:
    """Without a limit of its own an answer may fill the context."""
    for name in ("max_completion_tokens", "max_tokens"):
        limit: int | None = getattr(body, name)
        if limit is not None:
            if limit < 1:
                raise bad_request(f"{name}={limit} must be at least 1", name)
            return limit
    return max(room, body.min_tokens or 1)


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates expect them: content as one text, arguments of calls as objects."""
    return [_template_message(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _template_message(message: Message, where: str) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _content(message, where),
    }
    for key in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, key)) is not None:
            shown[key] = value
    if message.tool_calls:
        shown["tool_calls"] = [
            {"id": call.id, "type": call.type, "function": _function(call.function.name, call.function.arguments)}
            for call in message.tool_calls
        ]
    return shown


def _content(message: Message, where: str) -> str:
    content = message.content
    if content is None:
        if message.role != "assistant":
            raise bad_request(f"{where}.content is required", f"{where}.content")
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for place, part in enumerate(content):
        field = f"{where}.content[{place}]"
        if part.type != "text":
            raise bad_request(f"{field}.type={part.type!r} is not supported; only text is", f"{field}.type")
        if part.text is None:
            raise bad_request(f"{field}.text is required", f"{field}.text")
        texts.append(part.text)
    return "".join(texts)


def _function(name: str, arguments: str) -> dict[str, Any]:
    try:
        return {"name": name, "arguments": json.loads(arguments)}
    except json.JSONDecodeError:
        return {"name": name, "arguments": arguments}


class _ChatForm:
    """Writes answers as messages."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, reading: _Reading, *, logprobs: bool, token_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._reading = reading
        self._logprobs = logprobs
        self._token_ids = token_ids
        self._parsers: dict[int, MessageParser] = {}
        self.prompt_token_ids: Sequence[int] = ()

    def choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        """``{"message": …}``"""
        completion = output.outputs[0]
        parser = self._reading.parser()
        parts = parser.feed(completion.text, end=True)
        message: dict[str, Any] = {"role": "assistant", "content": parts.content, "refusal": None}
        if parser.thought:
            message["reasoning_content"] = parts.reasoning
        if parts.calls:
            message["content"] = parts.content or None
            message["tool_calls"] = _calls(parts.calls)
        choice = {
            "index": index,
            "message": message,
            "logprobs": self._written(completion.logprobs),
            "finish_reason": _finish_reason(completion.finish_reason, parser),
            "stop_reason": completion.stop_reason,
        }
        return choice | ({"token_ids": list(completion.token_ids)} if self._token_ids else {})

    def chunk_choice(self, index: int, piece: StreamPiece) -> dict[str, Any]:
        """``{"delta": …}``; the role comes with the first."""
        first = index not in self._parsers
        if first:
            self._parsers[index] = self._reading.parser()
        parser = self._parsers[index]
        thought = parser.thought and not first
        parts = parser.feed(piece.text, end=piece.finish_reason is not None)
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        if parts.reasoning or parser.thought > thought:
            delta["reasoning_content"] = parts.reasoning
        if parts.calls:
            delta["tool_calls"] = _call_deltas(parts.calls)
        if parts.content or (first and len(delta) == 1) or not self._reading.splits:
            delta["content"] = parts.content
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._written(piece.logprobs),
            "finish_reason": _finish_reason(piece.finish_reason, parser),
        }
        if not self._token_ids:
            return choice
        prompt = {"prompt_token_ids": list(self.prompt_token_ids)} if first else {}
        return choice | {"token_ids": list(piece.token_ids)} | prompt

    def root(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """What is known about the prompt."""
        shown: dict[str, Any] = {}
        if outputs[0].prompt_logprobs is not None:
            shown["prompt_logprobs"] = prompt_logprobs(self._tokenizer, outputs[0].prompt_logprobs)
        if self._token_ids:
            shown["prompt_token_ids"] = list(self.prompt_token_ids)
        return shown

    def _written(self, logprobs: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
        return chat_logprobs(self._tokenizer, logprobs or ()) if self._logprobs else None


def _finish_reason(reason: str | None, parser: MessageParser) -> str | None:
    return "tool_calls" if parser.num_calls and reason == "stop" else reason


def _call_deltas(calls: Sequence[CallDelta]) -> list[dict[str, Any]]:
    shown = []
    for call in calls:
        if call.name is None:
            shown.append({"index": call.index, "function": {"arguments": call.arguments}})
        else:
            function = {"name": call.name, "arguments": call.arguments}
            shown.append({"index": call.index, "id": call.id, "type": "function", "function": function})
    return shown


def _calls(told: Sequence[CallDelta]) -> list[dict[str, Any]]:
    """Whole calls from what was told about them."""
    calls: dict[int, dict[str, Any]] = {}
    for call in told:
        if call.name is not None:
            calls[call.index] = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        calls[call.index]["function"]["arguments"] += call.arguments
    return list(calls.values())
