"""Any number of threads over one synchronous engine, without a thread of its own.

One thread at a time has its turn with the engine. A thread that waits for an answer takes the turn when it is free and
makes one step, for the requests of all threads; the others sleep until a step has brought what they wait for. So calls
from several threads share the engine's batches. Between two steps, threads that add requests go first.
"""

from __future__ import annotations

import itertools
import logging
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, NamedTuple

from outrider.engine.engine import Engine
from outrider.errors import EngineUnavailableError, RequestFailedError
from outrider.outputs import RequestOutput, StreamPiece
from outrider.request_state import RequestState
from outrider.sampling_params import SamplingParams

logger = logging.getLogger(__name__)


class Job(NamedTuple):
    """One answer (``n`` = 1) to a prompt, and the prompt's text if it has one."""

    prompt_token_ids: Sequence[int]
    params: SamplingParams
    prompt: str | None = None


@dataclass(eq=False)
class _Answer:
    """What a request has gained and nobody has read yet; ``output`` is there once it has ended."""

    request: RequestState
    prompt: str | None
    keeps_pieces: bool
    pieces: deque[StreamPiece] = field(default_factory=deque)
    num_tokens: int = 0
    output: RequestOutput | None = None

    @property
    def ready(self) -> bool:
        """True if there is something to read: a piece, or where none are kept the output."""
        return bool(self.pieces) if self.keeps_pieces else self.output is not None


class SharedEngine:
    """``engine`` for any number of threads.

    ``failure`` is None, or says why nothing is served any more: the engine's blocks did not add up after a failed step.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failure: str | None = None
        self._ids = itertools.count()
        self._answers: dict[str, _Answer] = {}
        self._changed = threading.Condition()
        self._turn_of: int | None = None
        self._num_adding = 0
        # The garbage collector closes streams too, and may do so in the middle of a step. So requests that nobody
        # wants any more are left here, and ended at the end of a turn.
        self._unwanted: deque[_Answer] = deque()

    def generate(self, jobs: Sequence[Job]) -> list[RequestOutput]:
        """The outputs of all ``jobs``, in their order; a failed one has ``error``.

        Raises ``InvalidRequestError``, before anything runs, if one can not be served, and ``EngineUnavailableError``
        if the engine is broken.
        """
        answers: list[_Answer] = []
        try:
            self._add(jobs, answers, keeps_pieces=False)
            for answer in answers:
                self._step_until_ready(answer)
        finally:
            self._discard(answers)
        return [answer.output for answer in answers if answer.output is not None]

    def stream(self, job: Job) -> Generator[StreamPiece, None, None]:
        """What each step adds to one answer; the last piece has the ``output``.

        The request begins with the first piece that is asked for, and ends when the iterator is closed. Raises what
        ``generate`` does, and ``RequestFailedError`` after the last piece if the request has failed.
        """
        answers: list[_Answer] = []
        try:
            self._add([job], answers, keeps_pieces=True)
            output = None
            while output is None:
                self._step_until_ready(answers[0])
                piece = answers[0].pieces.popleft()
                output = piece.output
                yield piece
        finally:
            self._discard(answers)
        if output.error is not None:
            raise RequestFailedError(output.error)

    def _add(self, jobs: Sequence[Job], answers: list[_Answer], *, keeps_pieces: bool) -> None:
        """Queue ``jobs`` and append to ``answers`` what will come of each."""
        with self._turn(adding=True):
            for job in jobs:
                request = self.engine.add_request(f"request-{next(self._ids)}", job.prompt_token_ids, job.params)
                answer = self._answers[request.request_id] = _Answer(request, job.prompt, keeps_pieces)
                answers.append(answer)

    def _step_until_ready(self, answer: _Answer) -> None:
        """Return when there is something to read; until then step for all, or sleep while another thread does."""
        while not answer.ready:
            with self._turn(unless_ready=answer):
                if not answer.ready:
                    self._step()

    @contextmanager
    def _turn(self, *, adding: bool = False, unless_ready: _Answer | None = None) -> Iterator[None]:
        """Use the engine once no other thread does; without waiting for that if an answer is ready before.

        Ctrl-C is held back meanwhile, so that it ends no step half-way.
        """
        me = threading.get_ident()
        if self._turn_of == me:
            raise EngineUnavailableError(
                "a drafter or logits processor can not call the LLM that it works for; load a second one"
            )

        def ready() -> bool:
            return unless_ready is not None and unless_ready.ready

        try:
            with self._changed:
                self._num_adding += adding
                try:
                    self._changed.wait_for(
                        lambda: ready() or (self._turn_of is None and (adding or not self._num_adding))
                    )
                finally:
                    self._num_adding -= adding
                if not ready():
                    if self.failure is not None:
                        raise EngineUnavailableError(self.failure)
                    self._turn_of = me
            with _InterruptsHeld():
                try:
                    yield
                finally:
                    self._end_turn(me)
        finally:
            self._end_turn(me)  # if an interrupt came before it was held back

    def _end_turn(self, me: int) -> None:
        """Pass the turn on, if this thread has it, after ending what nobody wants any more."""
        while self._turn_of == me:
            self._end_unwanted()
            with self._changed:
                self._turn_of = None
                if self._unwanted:
                    self._turn_of = me
                else:
                    self._changed.notify_all()

    def _step(self) -> None:
        """One step of the engine; what it adds to each request waits there to be read."""
        self._end_unwanted()
        try:
            for request, piece in self.engine.step():
                answer = self._answers.get(request.request_id)
                if answer is not None:
                    self._put(answer, piece)
            if not self.engine.has_requests:
                # Without a step, someone may have aborted a request at the engine itself.
                for answer in list(self._answers.values()):
                    self._put_rest(answer)
        except Exception as error:
            logger.exception("a step of the engine failed")
            self._fail_all(error)
        except BaseException as error:
            self._fail_all(error)
            raise

    def _put(self, answer: _Answer, piece: StreamPiece) -> None:
        answer.num_tokens += len(piece.token_ids)
        if answer.request.finished:
            answer.output = self.engine.take_output(answer.request.request_id, answer.prompt)
            del self._answers[answer.request.request_id]
            piece = replace(piece, output=answer.output)
        if answer.keeps_pieces:
            answer.pieces.append(piece)

    def _put_rest(self, answer: _Answer) -> None:
        """The last piece of a request that ended without one."""
        request = answer.request
        if request.finished:
            self._put(answer, self.engine.piece(request, request.num_output_tokens - answer.num_tokens))

    def _fail_all(self, cause: BaseException) -> None:
        """End every request with an error: a failed step may have left any of them half-way."""
        problem = f"the engine's step failed: {type(cause).__name__}: {cause}".removesuffix(": ")
        try:
            for answer in list(self._answers.values()):
                if not answer.request.finished:
                    self.engine.fail(answer.request, problem)
                self._put_rest(answer)
            self.engine.check_integrity()
        except Exception as error:
            self._break(error)

    def _discard(self, answers: Sequence[_Answer]) -> None:
        """End those of ``answers`` that still run, now or after the step that another thread makes.

        May be called at any time in any thread, as the garbage collector does.
        """
        self._unwanted.extend(answer for answer in answers if answer.output is None)
        if not self._unwanted:
            return
        me = threading.get_ident()
        with _InterruptsHeld():
            with self._changed:
                free = self._turn_of is None
                if free:
                    self._turn_of = me
            if free:
                self._end_turn(me)

    def _end_unwanted(self) -> None:
        """Give back the blocks of requests that nobody wants any more."""
        try:
            while self._unwanted:
                request_id = self._unwanted.popleft().request.request_id
                if self._answers.pop(request_id, None) is not None:
                    self.engine.abort(request_id)
                    self.engine.take_output(request_id)
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        self.failure = self.failure or f"the engine is broken: {type(error).__name__}: {error}; load the model again"
        logger.exception("the engine is broken")


class _InterruptsHeld:
    """Holds Ctrl-C back to the end of the ``with`` block; a second one comes through at once.

    Only the main thread is ever interrupted, so in others this does nothing.
    """

    def __init__(self) -> None:
        self._previous: Any = None
        self._held: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGINT)
            if callable(previous):
                self._previous = previous
                signal.signal(signal.SIGINT, self._hold)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        held, self._held = self._held, (number, frame)
        if held is not None:
            self._held = None
            self._previous(number, frame)

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            if self._held is not None:
                self._previous(*self._held)
