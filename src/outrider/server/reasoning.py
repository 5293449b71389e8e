"""Tells thoughts, ``<think>…</think>``, from the answer that follows, however many tokens a step brings.

Only a chat template says that a model thinks, and only the beginning of an answer is looked at: a mark that comes later
is text. Knows nothing about tools, whose calls are found in what follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outrider.sampling_params import StructuredOutputs
from outrider.server.marks import overlap

ReasoningStyle = Literal["auto", "think", "off"]
"""``think`` looks for thoughts in every chat, ``auto`` if the chat template has a mark of them, ``off`` never."""

OPEN, CLOSE = "<think>", "</think>"


def is_read(style: ReasoningStyle, chat_template: str | None) -> bool:
    """Whether answers are searched for thoughts."""
    template = chat_template or ""
    return style == "think" or (style == "auto" and (OPEN in template or CLOSE in template))


def is_open(prompt: str) -> bool:
    """Whether the prompt ends inside of thoughts, so that the answer goes on with them."""
    return prompt.rstrip().endswith(OPEN)


def after_thoughts(wanted: StructuredOutputs | None) -> StructuredOutputs | None:
    """The form of an answer whose prompt opens the thoughts: it holds for what follows them."""
    if wanted is None or wanted.after is not None:
        return wanted
    return wanted.model_copy(update={"after": CLOSE})


@dataclass(frozen=True)
class Said:
    """What is new about an answer."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser:
    """Splits one answer into thoughts and what is said. ``feed`` it pieces of text, then ``finish``.

    Both parts come without the white space around the marks. ``opened`` says that the prompt has opened the thoughts;
    ``found`` is true once there are any.
    """

    def __init__(self, *, opened: bool) -> None:
        self.found = opened
        self._state: Literal["before", "first", "thinking", "after", "saying"] = "first" if opened else "before"
        self._held = ""

    def feed(self, text: str) -> Said:
        """What ``text`` adds."""
        self._held += text
        reasoning = self._thoughts()
        if self._state == "after":
            self._held = self._held.lstrip()
            self._state = "saying" if self._held else "after"
        if self._state != "saying":
            return Said(reasoning)
        content, self._held = self._held, ""
        return Said(reasoning, content)

    def finish(self) -> Said:
        """The answer is over: what was held back belongs to the part that it stands in."""
        rest, self._held = self._held, ""
        return Said(rest.rstrip()) if self.found and self._state != "saying" else Said(content=rest)

    def _thoughts(self) -> str:
        if self._state == "before":
            self._begin()
        if self._state == "first":
            self._held = self._held.lstrip()
            self._state = "thinking" if self._held else "first"
        if self._state != "thinking":
            return ""
        place = self._held.find(CLOSE)
        if place >= 0:
            certain, self._held = self._held[:place], self._held[place + len(CLOSE) :]
            self._state = "after"
            return certain.rstrip()
        keep = overlap(self._held, CLOSE)
        certain = self._held[: len(self._held) - keep].rstrip()
        self._held = self._held[len(certain) :]
        return certain

    def _begin(self) -> None:
        """Thoughts begin if the mark is the first that the answer holds."""
        stripped = self._held.lstrip()
        if stripped.startswith(OPEN):
            self._held = stripped[len(OPEN) :]
            self.found, self._state = True, "first"
        elif not OPEN.startswith(stripped):
            self._state = "saying"
