"""Many asyncio callers over one synchronous engine.

One thread steps the engine and is the only one that touches it: callers leave commands in an inbox, which the thread
empties before each step, and it sleeps when there is nothing to do. What a step gains goes to each caller's own mailbox
in that caller's event loop, so a slow reader holds up nobody.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from outrider.engine.engine import Engine
from outrider.engine.mailbox import Mailbox, call_in_loop, deliver
from outrider.engine.parallel_sampling import joined, one_each
from outrider.errors import EngineUnavailableError, InvalidRequestError, QueueFullError, RequestFailedError, counted
from outrider.outputs import RequestOutput, StreamPiece
from outrider.request import Request
from outrider.request_state import RequestState
from outrider.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

DEFAULT_MAX_WAITING = 256
_DRAIN_POLL_S = 0.02

Job = tuple[Sequence[int], SamplingParams]
"""Token ids of a prompt, and the parameters of one answer to it (``n`` = 1)."""


class Observer(Protocol):
    """Is told what happens, in the engine's thread; must be quick. What it raises is logged and otherwise ignored."""

    def started(self, request: Request, queued_s: float) -> None:
        """The request's first tokens are being computed, so many seconds after it arrived."""
        ...

    def gained(self, request: Request, piece: StreamPiece) -> None:
        """A step added ``piece`` to the request."""
        ...

    def ended(self, request: Request) -> None:
        """The request has its ``finish_reason``."""
        ...


@dataclass(frozen=True)
class EngineLoad:
    """What the engine has to do at this moment; ``kv_usage`` is the share of blocks in use, 0 to 1."""

    num_running: int
    num_waiting: int
    kv_usage: float


class Submission:
    """The answers to jobs that were submitted together, as they come: an async iterator of (index of the job, piece).

    ``outputs[index]`` is there once that answer has ended; a failed one has ``error`` set. Whoever stops reading must
    ``abort``; cancelling a read does so, and so does losing the object.
    """

    def __init__(self, engine: AsyncEngine, mailbox: Mailbox) -> None:
        self._engine = engine
        self._mailbox = mailbox
        self.outputs: list[RequestOutput | None] = [None] * mailbox.size

    def __aiter__(self) -> Submission:
        return self

    async def __anext__(self) -> tuple[int, StreamPiece]:
        while True:
            while self._mailbox.news:
                index, piece, output = self._mailbox.news.popleft()
                if output is not None:
                    self.outputs[index] = output
                if piece is not None:
                    return index, piece
            if self.finished:
                raise StopAsyncIteration
            self._mailbox.arrived.clear()
            try:
                await self._mailbox.arrived.wait()
            except asyncio.CancelledError:
                self.abort()
                raise

    async def wait(self, timeout_s: float) -> bool:
        """Wait at most so long; True if there is something to read, be it the end."""
        if not self._mailbox.news and not self.finished:
            self._mailbox.arrived.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._mailbox.arrived.wait(), timeout_s)
        return bool(self._mailbox.news) or self.finished

    @property
    def finished(self) -> bool:
        """True once every answer's end has been read."""
        return None not in self.outputs

    @property
    def refusing(self) -> str | None:
        """Why the engine takes no further requests; None while it does."""
        return self._engine.refusing

    async def result(self) -> list[RequestOutput]:
        """Read to the end; the outputs in the jobs' order."""
        async for _ in self:
            pass
        return [output for output in self.outputs if output is not None]

    def abort(self) -> None:
        """End what still runs; its blocks come back before the next step. Harmless after the end."""
        if not self.finished:
            self._engine._abort(self._mailbox.request_ids)

    def __del__(self) -> None:
        self.abort()


class AsyncEngine:
    """Takes requests from any number of tasks, and from any event loop, while a thread of its own runs ``engine``.

    At most ``engine``'s ``max_num_seqs`` and ``max_waiting`` more requests are held at a time; further ones are refused
    with ``QueueFullError``. A step that raises ends the requests at hand with an error and the engine goes on; if even
    its blocks do not add up afterwards, ``failure`` says so and every later request is refused.
    """

    def __init__(
        self, engine: Engine, *, max_waiting: int = DEFAULT_MAX_WAITING, observer: Observer | None = None
    ) -> None:
        self.engine = engine
        self.max_requests = engine.scheduler.max_num_seqs + max_waiting
        self.failure: str | None = None
        self._observer = observer
        self._ids = itertools.count()
        self._wake = threading.Condition()
        self._inbox: list[Callable[[], None]] = []
        self._num_live = 0
        self._refusing: str | None = None
        self._closing = False
        self._live: dict[str, tuple[RequestState, Mailbox, int]] = {}
        self._not_started: dict[str, RequestState] = {}
        self._thread = threading.Thread(target=self._run, name="outrider-engine", daemon=True)
        self._thread.start()

    @property
    def load(self) -> EngineLoad:
        """How busy the engine is; may be read from any thread."""
        scheduler, kv = self.engine.scheduler, self.engine.runner.kv
        num_running = len(scheduler.running)
        return EngineLoad(num_running, max(0, self._num_live - num_running), 1.0 - kv.num_free_blocks / kv.num_blocks)

    @property
    def refusing(self) -> str | None:
        """Why new requests are refused; None while they are taken."""
        return self.failure or self._refusing

    async def submit(self, jobs: Sequence[Job], *, priority: int = 0) -> Submission:
        """Take on all of ``jobs``, or none; those of lower ``priority`` go first.

        Raises ``InvalidRequestError`` if one can not be served, ``QueueFullError`` if there is no room for all of them
        now, and ``EngineUnavailableError`` while the engine is shutting down or broken.
        """
        mailbox = Mailbox(asyncio.get_running_loop(), len(jobs))
        with self._wake:
            if self.refusing is not None:
                raise EngineUnavailableError(self.refusing)
            if len(jobs) > self.max_requests:
                raise InvalidRequestError(
                    f"{counted(len(jobs), 'answer')} at once, but this engine holds at most {self.max_requests}; "
                    f"ask for fewer",
                    param="n",
                )
            if self._num_live + len(jobs) > self.max_requests:
                verb = "is" if self._num_live == 1 else "are"
                raise QueueFullError(
                    f"{counted(self._num_live, 'request')} {verb} running or waiting and {self.max_requests} is the "
                    f"most; try later"
                )
            mailbox.request_ids = tuple(f"request-{next(self._ids)}" for _ in jobs)
            self._num_live += len(jobs)
            self._inbox.append(lambda: self._add(jobs, mailbox, priority))
            self._wake.notify()
        answers = Submission(self, mailbox)
        try:
            await mailbox.accepted
        except asyncio.CancelledError:
            answers.abort()
            raise
        except Exception:
            mailbox.request_ids = ()  # none of them is there to be aborted
            raise
        return answers

    async def stream(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> AsyncIterator[StreamPiece]:
        """What each step adds to the answer to one prompt (``n`` must be 1); the last piece has the ``output``.

        Closing the iterator, or cancelling its reader, ends the request. Raises what ``submit`` raises, and
        ``RequestFailedError`` if the request fails on the way.
        """
        answers = await self.submit([(prompt_token_ids, params)])
        try:
            async for _, piece in answers:
                yield piece if piece.finish_reason is None else replace(piece, output=answers.outputs[0])
        finally:
            answers.abort()
        (output,) = answers.outputs
        if output is not None and output.error is not None:
            raise RequestFailedError(output.error)

    async def generate(self, prompt_token_ids: Sequence[int], params: SamplingParams | None = None) -> RequestOutput:
        """The ``n`` answers to one prompt as one output; a failed one has ``error``. Raises what ``submit`` does."""
        params = params or SamplingParams()
        answers = await self.submit([(prompt_token_ids, each) for each in one_each(params)])
        outputs = await answers.result()
        return outputs[0] if params.n == 1 else joined(outputs)

    async def drain(self, grace_s: float) -> bool:
        """Refuse new requests and let the running ones end; after ``grace_s`` seconds end those left with an error.

        True if all ended by themselves.
        """
        with self._wake:
            self._refusing = self._refusing or "the server is shutting down"
        deadline = time.monotonic() + grace_s
        while self._num_live and self.failure is None and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_S)
        in_time = self._num_live == 0
        self._post(lambda: self._fail_all("the server is shutting down"))
        return in_time

    def close(self) -> None:
        """End what still runs with an error, and the thread. Waits for the step at hand; harmless the second time."""
        with self._wake:
            self._refusing = self._refusing or "the engine is closed"
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    def _abort(self, request_ids: Sequence[str]) -> None:
        if request_ids:
            self._post(lambda: self._abort_here(request_ids))

    # What follows runs in the engine's thread.

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._inbox or self._closing or (self.failure is None and self.engine.has_requests)):
                    self._wake.wait()
                commands, self._inbox = self._inbox, []
                closing = self._closing
            try:
                for command in commands:
                    command()
                if closing:
                    return
                if self.failure is None:
                    self._step()
            except Exception as error:
                logger.exception("the engine's thread failed")
                self._break(f"the engine is broken: {type(error).__name__}: {error}")
            finally:
                if closing or self.failure is not None:
                    self._fail_all(self.failure or "the engine is closed")

    def _add(self, jobs: Sequence[Job], mailbox: Mailbox, priority: int) -> None:
        added: list[RequestState] = []
        try:
            if self.failure is not None:
                raise EngineUnavailableError(self.failure)
            for request_id, (prompt_token_ids, params) in zip(mailbox.request_ids, jobs, strict=True):
                request = self.engine.add_request(request_id, prompt_token_ids, params, priority=priority)
                added.append(request)
        except Exception as error:
            for request in added:
                self.engine.abort(request.request_id)
                self.engine.take_output(request.request_id)
            self._forget(len(jobs))
            call_in_loop(mailbox.loop, mailbox.settle, error)
            return
        for index, request in enumerate(added):
            self._live[request.request_id] = (request, mailbox, index)
            self._not_started[request.request_id] = request
        call_in_loop(mailbox.loop, mailbox.settle, None)

    def _abort_here(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if request_id in self._live:
                request = self._live[request_id][0]
                self.engine.abort(request_id)
                self._finish([(request, None)])

    def _step(self) -> None:
        began = time.monotonic()
        try:
            outcomes = self.engine.step()
        except Exception as error:
            logger.exception("a step of the engine failed")
            self._fail_all(f"the engine's step failed: {type(error).__name__}: {error}")
            self._check()
            return
        self._tell_started(began, [request for request, _ in outcomes])
        for request, piece in outcomes:
            self._tell("gained", request, piece)
        self._finish(outcomes)

    def _tell_started(self, began: float, gained: Sequence[Request]) -> None:
        if not self._not_started:
            return
        for request in (*self.engine.scheduler.running, *gained):
            if self._not_started.pop(request.request_id, None) is not None:
                self._tell("started", request, max(0.0, began - request.metrics.arrival_time))

    def _finish(self, outcomes: Sequence[tuple[RequestState, StreamPiece | None]]) -> None:
        """Hand out what was gained, in one call for each event loop; forget the requests that have ended."""
        post: dict[asyncio.AbstractEventLoop, list[tuple[Mailbox, int, StreamPiece | None, RequestOutput | None]]] = {}
        num_ended = 0
        for request, piece in outcomes:
            _, mailbox, index = self._live[request.request_id]
            output = None
            if request.finished:
                output = self.engine.take_output(request.request_id)
                del self._live[request.request_id]
                self._not_started.pop(request.request_id, None)
                self._tell("ended", request)
                num_ended += 1
            post.setdefault(mailbox.loop, []).append((mailbox, index, piece, output))
        self._forget(num_ended)
        for loop, letters in post.items():
            if not call_in_loop(loop, deliver, letters):
                self._abort([request_id for mailbox, *_ in letters for request_id in mailbox.request_ids])

    def _fail_all(self, problem: str) -> None:
        outcomes: list[tuple[RequestState, StreamPiece | None]] = []
        for request_id, (request, mailbox, index) in list(self._live.items()):
            try:
                outcomes.append((request, None if request.finished else self.engine.fail(request, problem)[1]))
            except Exception as error:
                # Not even ending it worked. Its caller must still hear of it.
                logger.exception("request %s could not be ended", request_id)
                self._break(f"the engine is broken: {type(error).__name__}: {error}")
                del self._live[request_id]
                self._forget(1)
                output = RequestOutput(
                    request_id, None, request.prompt_token_ids, [], replace(request.metrics), error=problem
                )
                call_in_loop(mailbox.loop, mailbox.put, index, None, output)
        self._finish(outcomes)

    def _check(self) -> None:
        try:
            self.engine.check_integrity()
        except Exception as error:
            self._break(f"the engine is broken: {error}")

    def _break(self, failure: str) -> None:
        logger.error("%s; no more requests are taken", failure)
        self.failure = failure

    def _forget(self, count: int) -> None:
        with self._wake:
            self._num_live -= count

    def _tell(self, what: str, *news: object) -> None:
        if self._observer is None:
            return
        try:
            getattr(self._observer, what)(*news)
        except Exception:
            logger.exception("an observer of the engine failed")
