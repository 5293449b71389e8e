"""Tools of a chat: what the template is given, and the grammar that makes the model call one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.models.tokenizer import Tokenizer
from outrider.sampling_params import StructuredOutputs
from outrider.server.errors import bad_request
from outrider.server.schemas import ChatCompletionRequest, NamedTool, Tool
from outrider.server.tool_parser import CLOSE, OPEN, ToolParser, ToolStyle


@dataclass(frozen=True)
class ToolUse:
    """How one request uses tools."""

    style: ToolStyle
    names: frozenset[str]
    template_tools: list[dict[str, Any]]
    grammar: StructuredOutputs | None

    def parser(self) -> ToolParser:
        """A parser for one answer."""
        return ToolParser(self.style, self.names)


def tool_style(chat_template: str) -> ToolStyle:
    """How the model that this template belongs to writes calls."""
    return "hermes" if OPEN in chat_template else "json"


def tool_use(request: ChatCompletionRequest, tokenizer: Tokenizer) -> ToolUse | None:
    """None if no tool may be called. Raises ``ApiError`` naming the field that can not be honoured."""
    choice, tools = request.tool_choice, request.tools or []
    if not tools:
        if choice not in (None, "none", "auto"):
            raise bad_request("tool_choice needs tools; give at least one", "tool_choice")
        return None
    names = [tool.function.name for tool in tools]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise bad_request(f"tools[{place}].function.name={name!r} occurs twice", f"tools[{place}].function.name")
    wanted = tools
    if isinstance(choice, NamedTool):
        wanted = [tool for tool in tools if tool.function.name == choice.function.name]
        if not wanted:
            raise bad_request(
                f"tool_choice names {choice.function.name!r}, but the tools are: {', '.join(names)}",
                "tool_choice.function.name",
            )
    if choice == "none":
        return None
    if not tokenizer.supports_tools or tokenizer.chat_template is None:
        raise bad_request(
            "this model's chat template has no place for tools; leave them out, or start the server with a "
            "--chat-template that has",
            "tools",
        )
    if request.response_format is not None and request.response_format.type != "text":
        raise bad_request(
            "response_format can not be combined with tools, unless tool_choice is none", "response_format"
        )
    if request.structured_outputs is not None:
        raise bad_request("structured_outputs can not be combined with tools", "structured_outputs")
    style = tool_style(tokenizer.chat_template)
    single = request.parallel_tool_calls is False
    return ToolUse(
        style=style,
        names=frozenset(tool.function.name for tool in wanted),
        template_tools=[tool.model_dump(exclude_none=True) for tool in tools],
        grammar=_grammar(style, wanted, forced=choice not in (None, "auto"), single=single),
    )


def _grammar(style: ToolStyle, tools: Sequence[Tool], *, forced: bool, single: bool) -> StructuredOutputs | None:
    strict = any(tool.function.strict for tool in tools)
    if not forced and not strict and not single:
        return None
    body = " | ".join(f"%json {json.dumps(_call_schema(style, tool))}" for tool in tools)
    if style == "json":
        if not forced:
            # Without a mark there is no telling a call from an answer that happens to be JSON.
            param = "parallel_tool_calls" if single else "tools"
            raise bad_request(
                f"{'parallel_tool_calls=false' if single else 'strict tools'} with tool_choice auto can not be "
                f"enforced for this model; use tool_choice required or a named tool",
                param,
            )
        return StructuredOutputs(grammar=f"start: call\ncall: {body}")
    rest = f'"\\n" call "\\n{CLOSE}"'
    more = "" if single else f' ("\\n{OPEN}" {rest})*'
    if forced:
        return StructuredOutputs(grammar=f'start: "{OPEN}" {rest}{more}\ncall: {body}')
    return StructuredOutputs(grammar=f"start: {rest}{more}\ncall: {body}", after=OPEN)


def _call_schema(style: ToolStyle, tool: Tool) -> dict[str, Any]:
    """The schema of the object that is a call of ``tool``."""
    arguments = "arguments" if style == "hermes" else "parameters"
    schema: dict[str, Any] = tool.function.parameters or {"type": "object"}
    # References inside the tool's own schema are to its own root.
    definitions: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    inner = {key: value for key, value in schema.items() if key not in definitions}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.function.name}, arguments: inner},
        "required": ["name", arguments],
        "additionalProperties": False,
        **definitions,
    }
