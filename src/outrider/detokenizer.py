"""Token ids of one request to text, piece by piece: characters never cut, stop strings never shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TokenStream(Protocol):
    """Turns ids into text as characters become complete."""

    def step(self, token_id: int) -> str:
        """The text that became certain with this id; empty while a character is incomplete."""
        ...

    def finish(self) -> str:
        """What is left when no more ids come: U+FFFD for a character that never became complete."""
        ...


class Detokenizer:
    """Text of one request.

    ``push`` takes tokens one at a time. Text that may be the beginning of a stop string is held back until that is
    settled; ``finish`` releases the rest.
    """

    def __init__(self, stream: TokenStream, stop: Sequence[str]) -> None:
        self._stream = stream
        self._stop = tuple(stop)
        self._held = ""
        self._stopped = False
        self.token_texts: list[str] = []
        """For each token pushed the text that became certain with it."""

    @property
    def text(self) -> str:
        """All text that is certain."""
        return "".join(self.token_texts)

    def push(self, token_id: int, *, hidden: bool = False, may_stop: bool = True) -> str | None:
        """Add one token; return the stop string if the text now holds one.

        A ``hidden`` token adds no text. Unless it ``may_stop`` here, text up to this token is no part of a stop string.
        """
        self._held += "" if hidden else self._stream.step(token_id)
        if not may_stop:
            self.token_texts.append(self._held)
            self._held = ""
            return None
        found = [(place, s) for s in self._stop if (place := self._held.find(s)) >= 0]
        if found:
            place, stop_string = min(found)
            self.token_texts.append(self._held[:place])
            self._held, self._stopped = "", True
            return stop_string
        keep = max((_overlap(self._held, s) for s in self._stop), default=0)
        certain = len(self._held) - keep
        self.token_texts.append(self._held[:certain])
        self._held = self._held[certain:]
        return None

    def finish(self) -> None:
        """No more tokens come: what was held back belongs to the last one, unless a stop string cut it off."""
        if self.token_texts and not self._stopped:
            self.token_texts[-1] += self._held + self._stream.finish()
            self._held = ""


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a proper beginning of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
