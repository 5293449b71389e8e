"""Times the steps of one request, and how much of each the model's forward pass took. A helper of other benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from outrider import LLM, SamplingParams, StreamPiece


class Step(NamedTuple):
    """What a step added; seconds of the whole step, and of these the seconds in the forward pass."""

    piece: StreamPiece
    whole: float
    inside: float


def timed_steps(llm: LLM, prompt: str, params: SamplingParams) -> Iterator[Step]:
    """Run one request alone, to its end; the first step has read the whole prompt.

    Raises ``InvalidRequestError`` if it can not be served, and ``RequestFailedError`` if it fails.
    """
    model: Any = llm.engine.runner.model
    with _Timed(llm.engine, "step") as whole, _Timed(model, "forward") as inside:
        for piece in llm.stream(prompt, params):
            yield Step(piece, whole.take(), inside.take())


class _Timed:
    """Adds up the seconds in a method of an object while the ``with`` block lasts."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self._method: Callable[..., Any] = getattr(owner, name)
        self._seconds = 0.0

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def __enter__(self) -> _Timed:
        def timed(*arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return self._method(*arguments, **named)
            finally:
                self._seconds += time.perf_counter() - begin

        setattr(self._owner, self._name, timed)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self._owner, self._name, self._method)
