"""One answer of a chat as it comes, split into thoughts, text and calls of tools."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.server.reasoning import ReasoningParser, Said
from outrider.server.tool_parser import CallDelta, Delta, ToolParser


@dataclass
class Parts:
    """What is new about an answer."""

    reasoning: str = ""
    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)


class MessageParser:
    """``feed`` it pieces of text, the last one with ``end``. Calls are looked for in what follows the thoughts."""

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolParser | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def thought(self) -> bool:
        """Whether there are thoughts, be they empty."""
        return self._reasoning is not None and self._reasoning.found

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return 0 if self._tools is None else self._tools.num_calls

    def feed(self, text: str, *, end: bool) -> Parts:
        """What ``text`` adds."""
        parts = Parts()
        if self._reasoning is None:
            self._say(parts, text)
        else:
            said = self._reasoning.feed(text)
            rest = self._reasoning.finish() if end else Said()
            parts.reasoning = said.reasoning + rest.reasoning
            self._say(parts, said.content + rest.content)
        if end and self._tools is not None:
            self._add(parts, self._tools.finish())
        return parts

    def _say(self, parts: Parts, text: str) -> None:
        if self._tools is None:
            parts.content += text
        else:
            self._add(parts, self._tools.feed(text))

    @staticmethod
    def _add(parts: Parts, delta: Delta) -> None:
        parts.content += delta.content
        parts.calls += delta.calls
