"""From the engine's thread to event loops: what was gained and not read yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from outrider.outputs import RequestOutput, StreamPiece


class Mailbox:
    """What was gained and not read yet; belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        self.loop = loop
        self.news: deque[tuple[int, StreamPiece | None, RequestOutput | None]] = deque()
        self.arrived = asyncio.Event()
        self.accepted: asyncio.Future[None] = loop.create_future()
        self.request_ids: tuple[str, ...] = ()
        self.size = size

    def put(self, index: int, piece: StreamPiece | None, output: RequestOutput | None) -> None:
        """News of one answer: what it gained, and its output if that ended it."""
        self.news.append((index, piece, output))
        self.arrived.set()

    def settle(self, error: Exception | None) -> None:
        """The requests were taken on, or refused with ``error``."""
        if self.accepted.done():
            return
        if error is None:
            self.accepted.set_result(None)
        else:
            self.accepted.set_exception(error)


def deliver(letters: Sequence[tuple[Mailbox, int, StreamPiece | None, RequestOutput | None]]) -> None:
    """Put what a step gained into the mailboxes of one event loop."""
    for mailbox, index, piece, output in letters:
        mailbox.put(index, piece, output)


def call_in_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> bool:
    """Run ``function`` in another thread's event loop; False if that is closed, and so nobody is left to read."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        return False
    return True
