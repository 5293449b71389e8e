"""One request's text in the tokens of another vocabulary, kept up to date as the text grows. Knows nothing of models.

Only the end of a text is tokenised again, in a window of bounded size. What comes before the window stays as it is
from a token on that the window's tokens have in common with the old ones, at the same place: byte pair encoding is a
matter of neighbours, so tokens that are right up to a place and tokens that are right from it on are right together.
A few tokens at the window's start may owe their cut to where the window starts, and the old end is what new text may
change; the common token lies between the two.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.models.vocabulary import Vocabulary

_WINDOW = 32
"""Tokens of the old end that are looked at again, at first."""
_GUARD = 4
"""Of them, those at either end that are not trusted."""


class Retokenizer:
    """Follows tokens of ``source`` and says them in ``own`` tokens.

    The start tokens of ``own`` come once, at the beginning; those of ``source`` there are left out. Control tokens of
    ``source`` become what ``images`` says, and are written out as ordinary text if that says nothing. Bytes that form
    no character, and those of a character that is not complete yet, become tokens of one byte each.
    """

    def __init__(self, source: Vocabulary, own: Vocabulary, images: dict[int, int]) -> None:
        self._source = source
        self._own = own
        self._images = images
        self._ids = list(own.start_ids)
        self._floor = len(self._ids)
        """Tokens before are settled: a control token or a byte that forms no character ends them."""
        self._num_read = 0
        self._at_start = True
        self._partial = b""
        self._expressible = True

    def update(self, token_ids: Sequence[int]) -> int:
        """Read on in ``token_ids``, which only grow; return how many tokens at the beginning are as they were."""
        self._kept = len(self._ids)
        pending = self._partial
        for place in range(self._num_read, len(token_ids)):
            token_id = token_ids[place]
            text = self._source.bytes_of(token_id)
            if text is not None:
                pending += self._at_beginning(text)
            elif not (place == 0 and token_id in self._source.start_ids):
                image = self._images.get(token_id)
                if image is None:
                    pending += self._at_beginning(self._source.control.get(token_id, "").encode())
                else:
                    self._settle(self._read(pending))
                    pending = b""
                    self._push(image)
        self._num_read = len(token_ids)
        self._partial = self._read(pending)
        return self._kept

    @property
    def num_settled(self) -> int:
        """Tokens that the next update hardly ever changes."""
        return max(len(self._ids) - 2 * _WINDOW, self._floor)

    @property
    def in_character(self) -> bool:
        """True if the text ends inside a character."""
        return bool(self._partial)

    def tokens(self) -> tuple[list[int], list[int]] | None:
        """The tokens of the whole characters, to be read only, and those of the bytes of one that is incomplete.

        None if ``own`` cannot say the text.
        """
        rest = [self._own.by_bytes.get(bytes([byte])) for byte in self._partial]
        if not self._expressible or None in rest:
            return None
        return self._ids, [id for id in rest if id is not None]

    def _at_beginning(self, text: bytes) -> bytes:
        """``text``, at the very beginning without the space that ``source`` puts there, or with the one of ``own``."""
        if not self._at_start or not text:
            return text
        self._at_start = False
        if self._source.prefixed and not self._own.prefixed:
            return text.removeprefix(b" ")
        return b" " + text if self._own.prefixed and not self._source.prefixed else text

    def _read(self, pending: bytes) -> bytes:
        """Take in all but the bytes of an incomplete character at the end, which are returned."""
        while True:
            try:
                pending.decode()
            except UnicodeDecodeError as error:
                self._append(pending[: error.start])
                if error.reason == "unexpected end of data":
                    return pending[error.start :]
                self._settle(pending[error.start : error.end])
                pending = pending[error.end :]
            else:
                self._append(pending)
                return b""

    def _settle(self, raw: bytes) -> None:
        """Bytes that form no character."""
        for byte in raw:
            token_id = self._own.by_bytes.get(bytes([byte]))
            if token_id is None:
                self._expressible = False
                return
            self._push(token_id)

    def _push(self, token_id: int) -> None:
        self._ids.append(token_id)
        self._floor = len(self._ids)

    def _append(self, text: bytes) -> None:
        """Whole characters more."""
        if not text or not self._expressible:
            return
        size = _WINDOW
        while True:
            start = self._window_start(size)
            old = self._ids[start:]
            window = b"".join(map(self._said, old))
            new = self._own.encode((window + text).decode())
            if not self._own.says(new, window + text):
                self._expressible = False
                return
            common = (0, 0) if start == self._floor else self._common(old, new)
            if common is not None:
                break
            size *= 2
        same, taken = common
        while same < len(old) and taken < len(new) and old[same] == new[taken]:
            same, taken = same + 1, taken + 1
        self._ids[start + same :] = new[taken:]
        self._kept = min(self._kept, start + same)

    def _window_start(self, size: int) -> int:
        """The beginning of a character about ``size`` tokens before the end, or where all before is settled."""
        start = max(len(self._ids) - size, self._floor)
        while start > self._floor and self._said(self._ids[start])[:1] not in _FIRST_BYTES:
            start -= 1
        return start

    def _common(self, old: list[int], new: list[int]) -> tuple[int, int] | None:
        """Where ``old`` and ``new`` first have the same token at the same byte, between guards; None if nowhere."""
        places = {}
        offset = 0
        for index, token_id in enumerate(new):
            places[offset, token_id] = index
            offset += len(self._said(token_id))
        offset = 0
        for index, token_id in enumerate(old):
            if _GUARD <= index < len(old) - _GUARD and (offset, token_id) in places:
                return index, places[offset, token_id]
            offset += len(self._said(token_id))
        return None

    def _said(self, token_id: int) -> bytes:
        return self._own.bytes_of(token_id) or b""


_FIRST_BYTES = frozenset(bytes([byte]) for byte in range(256) if byte & 0xC0 != 0x80)
"""Bytes that a character of UTF-8 can begin with."""
