"""Prometheus metrics of one server: vLLM's names under ``outrider:``, and its literal names for speculation.

Counters are raw; ratios are for the reader to derive: acceptance rate = accepted / draft tokens, mean acceptance length
= 1 + accepted / drafts, acceptance at position i = accepted at i / drafts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from outrider.engine.async_engine import EngineLoad
from outrider.outputs import StreamPiece
from outrider.request import Request

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
_FIRST = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_WHOLE = (0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0)
"""Upper edges in seconds of histograms: of times between tokens, to the first token, and of whole requests."""


class Metrics:
    """Counts what an engine does; an ``Observer`` of it.

    ``load`` and ``drafter_bytes``, the memory of the drafters' indexes, are asked when gauges are read.
    """

    def __init__(
        self, model: str, load: Callable[[], EngineLoad], drafter_bytes: Callable[[], int] = lambda: 0
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._model = model
        self._last_token: dict[str, float] = {}
        self._gauge("num_requests_running", "Requests that run.", lambda: load().num_running)
        self._gauge("num_requests_waiting", "Requests that wait.", lambda: load().num_waiting)
        self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", lambda: load().kv_usage)
        self._gauge("drafter_index_bytes", "Memory of the drafters' indexes of earlier text.", drafter_bytes)
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that started.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens that were looked for in the prefix cache.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens that were found there.")
        self._preemptions = self._counter("num_preemptions", "Times that a request gave its blocks to an older one.")
        self._finished = Counter(
            "outrider:request_success",
            "Requests that ended, by reason.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )
        self._drafts = self._aliased("num_drafts", "Steps that verified drafts.")
        self._draft_tokens = self._aliased("num_draft_tokens", "Tokens drafted.")
        self._accepted_tokens = self._aliased("num_accepted_tokens", "Drafted tokens that were accepted.")
        self._accepted_at = [
            Counter(
                f"{prefix}:spec_decode_num_accepted_tokens_per_pos",
                "Drafted tokens that were accepted, by position in the draft.",
                ("model_name", "position"),
                registry=self.registry,
            )
            for prefix in ("outrider", "vllm")
        ]
        self._ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", _FIRST)
        self._itl = self._histogram("inter_token_latency_seconds", "Between steps, per token gained.", _FAST)
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds", "Mean time per token after the first, by request.", _FAST
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "From arrival to the end.", _WHOLE)
        self._queued = self._histogram("request_queue_time_seconds", "From arrival to the first pass.", _WHOLE)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def started(self, request: Request, queued_s: float) -> None:
        """Its first tokens are being computed."""
        self._queued.observe(queued_s)
        self._prompt_tokens.inc(len(request.prompt_token_ids))
        self._queries.inc(len(request.prompt_token_ids))
        self._hits.inc(request.metrics.num_cached_tokens)

    def gained(self, request: Request, piece: StreamPiece) -> None:
        """A step added tokens."""
        count = len(piece.token_ids)
        if not count:
            return
        self._generation_tokens.inc(count)
        self._count_drafts(request)
        now, last = time.monotonic(), self._last_token.get(request.request_id)
        if last is None:
            self._ttft.observe(request.metrics.time_to_first_token or 0.0)
        else:
            for _ in range(count):
                self._itl.observe((now - last) / count)
        self._last_token[request.request_id] = now

    def ended(self, request: Request) -> None:
        """It has its ``finish_reason``."""
        self._last_token.pop(request.request_id, None)
        self._finished.labels(self._model, request.finish_reason or "error").inc()
        self._preemptions.inc(request.num_preemptions)
        metrics = request.metrics
        if metrics.finish_time is None or request.finish_reason not in ("stop", "length"):
            return
        self._e2e.observe(max(0.0, metrics.finish_time - metrics.arrival_time))
        if metrics.first_token_time is not None and request.num_output_tokens > 1:
            seconds = max(0.0, metrics.finish_time - metrics.first_token_time)
            self._tpot.observe(seconds / (request.num_output_tokens - 1))

    def _count_drafts(self, request: Request) -> None:
        stats = request.metrics.speculative_decoding
        drafted, accepted = stats.per_step_drafted[-1], stats.per_step_accepted[-1]
        if not drafted:
            return
        _add(self._drafts, 1)
        _add(self._draft_tokens, drafted)
        _add(self._accepted_tokens, accepted)
        for counter in self._accepted_at:
            for position in range(accepted):
                counter.labels(self._model, str(position)).inc()

    def _gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        gauge = Gauge(f"outrider:{name}", meaning, ("model_name",), registry=self.registry)
        gauge.labels(self._model).set_function(value)

    def _counter(self, name: str, meaning: str, prefix: str = "outrider") -> Counter:
        return Counter(f"{prefix}:{name}", meaning, ("model_name",), registry=self.registry).labels(self._model)

    def _aliased(self, name: str, meaning: str) -> list[Counter]:
        return [self._counter(f"spec_decode_{name}", meaning, prefix) for prefix in ("outrider", "vllm")]

    def _histogram(self, name: str, meaning: str, edges: Iterable[float]) -> Histogram:
        whole = Histogram(f"outrider:{name}", meaning, ("model_name",), buckets=tuple(edges), registry=self.registry)
        return whole.labels(self._model)


def _add(counters: Iterable[Counter], amount: float) -> None:
    for counter in counters:
        counter.inc(amount)
