"""Outrider behind the same protocol as its peers: ``python -m outrider.bench.outrider_worker``.

Modes: ``off``, and ``ngram`` or ``draft_model``, whichever the loaded drafter is.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from outrider.bench.peers.serve import reply_stream, serve
from outrider.errors import RequestFailedError

_FORWARD = "bench-forward"
_CHUNK = 512


class Engine:
    """One ``LLM`` for one request at a time."""

    def load(
        self, model: str, threads: int, max_model_len: int, draft_model: str | None, settings: dict[str, Any]
    ) -> dict[str, Any]:
        """Load the target and its drafter; ``settings`` are ``EngineConfig``'s."""
        from outrider import __version__, native
        from outrider.llm import LLM

        if native.available():
            native.library.set_num_threads(threads)
        speculative = settings.pop("speculative")
        self._llm = LLM(model, speculative_config=speculative, max_num_seqs=1, max_model_len=max_model_len, **settings)
        self._held: list[int] = []  # the context whose keys and values ``forward`` keeps
        speculator = self._llm.engine.speculator
        modes = ["off", speculator.name] if speculator.active else ["off"]
        return {"version": f"outrider {__version__}", "detail": str(self._llm.speculation), "modes": modes}

    def generate(self, token_ids: list[int], max_tokens: int, end_token_ids: list[int], mode: str) -> dict[str, Any]:
        """Greedy tokens; the end tokens are the model's own. Raises ``RequestFailedError``."""
        from outrider.sampling_params import SamplingParams

        self._drop_held()
        k = 0 if mode == "off" else None
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, num_speculative_tokens=k)
        (output,) = self._llm.generate([token_ids], params)
        if output.error is not None:
            raise RequestFailedError(output.error)
        made, metrics = list(output.outputs[0].token_ids), output.metrics
        stats = metrics.speculative_decoding
        first, finish = metrics.first_token_time, metrics.finish_time
        if first is None or finish is None:
            raise RequestFailedError("the request ended without a token")
        return {
            "token_ids": made,
            "first_s": first - metrics.arrival_time,
            "rest_s": finish - first,
            "rest_tokens": len(made) - 1 - next(iter(stats.per_step_accepted), 0),
            "steps": stats.num_steps,
            "drafted_steps": stats.num_spec_steps,
            "drafted_tokens": stats.num_draft_tokens,
            "accepted_tokens": stats.num_accepted_draft_tokens,
        }

    def forward(self, context: list[int], rows: list[int], count: int) -> float:
        """One pass of the target, as a verification of ``count - 1`` drafts makes it."""
        from outrider.runner.model_runner import Chunk

        runner = self._llm.engine.runner
        if self._held != context:
            if not runner.kv.allocate(_FORWARD, len(context) + len(rows)):
                raise RuntimeError(f"the KV cache has no room for {len(context) + len(rows)} tokens")
            for start in range(0, len(context), _CHUNK):
                runner.forward([Chunk(_FORWARD, context[start : start + _CHUNK], start, 1)])
            self._held = context
        begin = time.perf_counter()
        runner.forward([Chunk(_FORWARD, rows[:count], len(context), count)])
        return time.perf_counter() - begin

    def _drop_held(self) -> None:
        """Give back the blocks that ``forward`` holds."""
        if self._held:
            self._llm.engine.runner.kv.free(_FORWARD)
            self._held = []


def main() -> None:
    """Serve until the input ends."""
    replies = reply_stream()
    serve(Engine(), "", sys.stdin, replies)


if __name__ == "__main__":
    main()
