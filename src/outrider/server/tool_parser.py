"""Finds calls of tools in an answer as it comes, however many tokens a step brings.

Two ways of writing calls are known:

    hermes  ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, any number, text around them (Hermes, Qwen)
    json    the whole answer is ``{"name": …, "parameters": {…}}``, or several with ; or space between (Llama)

What looks like a call but is none, or names a tool that was not given, is passed on as the text that it is. A call is
told as soon as its name is known, and its arguments as they grow.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from outrider.server.json_object import ObjectReader
from outrider.server.marks import overlap

ToolStyle = Literal["hermes", "json"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_ARGUMENTS = ("arguments", "parameters")


@dataclass
class CallDelta:
    """What is new about one call. ``name`` comes with the first delta only."""

    index: int
    id: str
    name: str | None
    arguments: str


@dataclass
class Delta:
    """What is new about an answer."""

    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)


class _Call:
    """One call on its way: told once its name is known to be a tool's."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._reader = ObjectReader()
        self._told = 0
        self.raw = ""
        self.name: str | None = None
        self.id = f"call_{uuid.uuid4().hex[:24]}"

    @property
    def over(self) -> bool:
        """No more text belongs to it: its brace is closed, or it is no call."""
        return self._reader.done or self.refused

    @property
    def complete(self) -> bool:
        return self._reader.done and self.name is not None

    @property
    def refused(self) -> bool:
        """It is no call, and nothing of it has been told."""
        if self.name is not None:
            return False
        name = self._name()
        return self._reader.failed or self._reader.done or (name is not None and name not in self._names)

    def feed(self, text: str) -> str:
        """Take text; returns what does not belong to it."""
        rest = self._reader.feed(text)
        self.raw += text[: len(text) - len(rest)]
        return rest

    def news(self) -> tuple[str | None, str] | None:
        """(its name if that is news, more of its arguments); None if there is nothing to tell."""
        name = None
        if self.name is None:
            found = self._name()
            if found is None or found not in self._names:
                return None
            name = self.name = found
        arguments = self._arguments()
        more, self._told = arguments[self._told :], max(self._told, len(arguments))
        return (name, more) if name is not None or more else None

    def _name(self) -> str | None:
        raw = self._reader.members.get("name")
        if raw is None:
            return None
        try:
            name = json.loads(raw)
        except json.JSONDecodeError:
            name = None
        return name if isinstance(name, str) else ""

    def _arguments(self) -> str:
        """The text of the arguments so far. Some models write the object as a string, which is read when complete."""
        reader = self._reader
        for key in _ARGUMENTS:
            if key in reader.members:
                raw = reader.members[key]
                try:
                    unpacked = json.loads(raw) if raw.startswith('"') else raw
                except json.JSONDecodeError:
                    return raw
                return str(unpacked)
        if reader.key in _ARGUMENTS and not reader.growing.startswith('"'):
            return reader.growing.rstrip()
        return "{}" if reader.done else ""


class ToolParser:
    """Splits one answer into text and calls. ``feed`` it pieces of text, then ``finish``."""

    def __init__(self, style: ToolStyle, names: Collection[str]) -> None:
        self._style = style
        self._names = frozenset(names)
        self._held = ""
        self._call: _Call | None = None
        self._opened = ""
        self._may_begin = True
        self.num_calls = 0

    def feed(self, text: str) -> Delta:
        """What ``text`` adds."""
        delta = Delta()
        self._held += text
        while self._held and self._step(delta):
            pass
        return delta

    def finish(self) -> Delta:
        """The answer is over: what was held back is text, and a call that was cut off stays as it was told."""
        delta = Delta()
        call, self._call = self._call, None
        if call is not None and call.name is None:
            delta.content += self._opened + call.raw
        delta.content += self._held
        self._held = self._opened = ""
        return delta

    def _step(self, delta: Delta) -> bool:
        """Move on in the text that is held; False if more is needed."""
        if self._call is not None:
            return self._in_call(delta, self._call)
        return self._outside_hermes(delta) if self._style == "hermes" else self._outside_json(delta)

    def _in_call(self, delta: Delta, call: _Call) -> bool:
        self._held = call.feed(self._held)
        if (news := call.news()) is not None:
            name, more = news
            self.num_calls += name is not None
            delta.calls.append(CallDelta(self.num_calls - 1, call.id, name, more))
        if call.refused:
            delta.content += self._opened + call.raw
            self._call, self._opened, self._may_begin = None, "", False
        elif call.complete:
            self._call, self._opened = None, ""
            self._may_begin = True
        elif self._held:
            self._call = None  # broken after it was told: the rest is text
        return bool(self._held)

    def _outside_hermes(self, delta: Delta) -> bool:
        if self.num_calls and self._may_begin:
            # Between a call and what follows it, space and the closing tag are no text.
            self._held = self._held.lstrip()
            if self._held.startswith(CLOSE):
                self._held = self._held[len(CLOSE) :].lstrip()
            elif CLOSE.startswith(self._held) or not self._held:
                return False
        place = self._held.find(OPEN)
        if place < 0:
            keep = overlap(self._held, OPEN)
            certain = self._held[: len(self._held) - keep]
            delta.content += certain
            self._may_begin = self._may_begin and not certain
            self._held = self._held[len(certain) :]
            return False
        delta.content += self._held[:place]
        self._held = self._held[place + len(OPEN) :]
        self._begin(OPEN)
        return True

    def _outside_json(self, delta: Delta) -> bool:
        stripped = self._held.lstrip(" \t\r\n;" if self.num_calls else " \t\r\n")
        if self._may_begin and not stripped:
            return False
        if self._may_begin and stripped.startswith("{"):
            self._begin(self._held[: len(self._held) - len(stripped)])
            self._held = stripped
            return True
        self._may_begin = False
        delta.content += self._held
        self._held = ""
        return False

    def _begin(self, opened: str) -> None:
        self._opened = opened
        self._call = _Call(self._names)
