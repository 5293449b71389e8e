"""Reads a JSON object while it is being written: which members are complete, and one member's value as it grows."""

from __future__ import annotations

import json

_SPACE = " \t\n\r"


class ObjectReader:
    """Takes the text of one JSON object in pieces.

    ``members`` holds the raw text of each complete member's value; ``key`` and ``growing`` are those of the member
    that is not complete. ``done`` is set at the closing brace, ``failed`` where the text can be no object. Checks the
    structure only: a value between its delimiters may still be no JSON.
    """

    def __init__(self) -> None:
        self.members: dict[str, str] = {}
        self.key: str | None = None
        self.growing = ""
        self.done = False
        self.failed = False
        self._expects = "{"
        self._raw = ""
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> str:
        """Take ``text``; returns what follows the object, or what stands from the place where it failed."""
        for place, character in enumerate(text):
            if self.done or self.failed:
                return text[place:]
            self._take(character)
            if self.failed:
                return text[place:]
        return ""

    def _take(self, character: str) -> None:
        if self._expects == "key":
            self._take_key(character)
        elif self._expects == "value":
            self._take_value(character)
        elif character in _SPACE:
            return
        elif character == "}" and self._expects in ("first key", ", or }"):
            self.done = True
        elif character == '"' and self._expects in ("first key", "next key"):
            self._expects, self._raw = "key", '"'
        elif character == self._expects[0] and self._expects in ("{", ":", ", or }"):
            self._expects = {"{": "first key", ":": "value", ", or }": "next key"}[self._expects]
        else:
            self.failed = True

    def _take_key(self, character: str) -> None:
        self._raw += character
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            try:
                self.key = str(json.loads(self._raw))
            except json.JSONDecodeError:
                self.failed = True
            self._expects, self.growing = ":", ""

    def _take_value(self, character: str) -> None:
        if self._in_string:
            self.growing += character
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
            return
        if not self.growing and character in _SPACE:
            return
        if self._depth == 0 and character in ",}":
            self._complete()
            if character == "}":
                self.done = True
            else:
                self._expects = "next key"
            return
        if character in "[{":
            self._depth += 1
        elif character in "]}":
            self._depth -= 1
        elif character == '"':
            self._in_string = True
        self.failed = self._depth < 0
        self.growing += character

    def _complete(self) -> None:
        value = self.growing.rstrip(_SPACE)
        if not value or self.key is None:
            self.failed = True
            return
        self.members[self.key] = value
        self.key, self.growing = None, ""
