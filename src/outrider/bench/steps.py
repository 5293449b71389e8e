"""Times the steps of one request, and how much of each the model's forward pass took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from outrider.engine.engine import Engine
from outrider.request import Request
from outrider.sampling_params import SamplingParams


def timed_steps(
    engine: Engine, token_ids: Sequence[int], params: SamplingParams
) -> Iterator[tuple[Request, float, float]]:
    """Run one request alone; after each step (the request, seconds of the step, seconds of them in the forward pass).

    The request must be run to its end. Raises ``InvalidRequestError`` if it can not be served.
    """
    model: Any = engine.runner.model
    forward, inside = model.forward, 0.0

    def timed(*arguments: Any) -> Any:
        nonlocal inside
        start = time.perf_counter()
        result = forward(*arguments)
        inside += time.perf_counter() - start
        return result

    model.forward = timed
    try:
        request = engine.add_request("timed", token_ids, params)
        while not request.finished:
            inside, start = 0.0, time.perf_counter()
            engine.step()
            yield request, time.perf_counter() - start, inside
        engine.take_output("timed")
    finally:
        model.forward = forward
