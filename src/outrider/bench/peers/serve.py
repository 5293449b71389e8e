"""One engine behind stdin and stdout: a JSON request per line in, a JSON reply per line out.

Run as ``python serve.py ADAPTER`` by the peers' own Python, where ADAPTER is a module beside this file that has a class
``Engine``. Imports nothing of Outrider. Between requests it waits in a read, so an idle worker takes no processor time.

    {"do": "load", "model": ..., "threads": ..., "max_model_len": ..., "draft_model": ..., "settings": {...}}
        -> {"version": ..., "detail": ..., "modes": [...]}
    {"do": "generate", "token_ids": [...], "max_tokens": ..., "end_token_ids": [...], "mode": ...}
        -> {"token_ids": [...], "first_s": ..., "rest_s": ..., "rest_tokens": ...}
    {"do": "forward", "context": [...], "rows": [...], "counts": [1, 2, ...], "times": ...}
        -> {"seconds": {"1": [...], "2": [...], ...}}
    {"do": "memory"}  ->  {"resident_bytes": ..., "peak_bytes": ...}

A request that fails is answered {"error": ...}; an engine that is not installed answers {"missing": ...} to all.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, Protocol, TextIO


class Engine(Protocol):
    """What an adapter offers; every method but ``load`` comes after it."""

    def load(
        self, model: str, threads: int, max_model_len: int, draft_model: str | None, settings: dict[str, Any]
    ) -> dict[str, Any]:
        """Load a model for one sequence of ``max_model_len`` tokens; returns version, detail and modes."""
        ...

    def generate(self, token_ids: list[int], max_tokens: int, end_token_ids: list[int], mode: str) -> dict[str, Any]:
        """Greedy tokens after ``token_ids``, up to and including the first end token.

        ``first_s`` are the seconds to the first token; ``rest_s`` the seconds from there to the last one, in which
        ``rest_tokens`` were made. ``mode`` is one of those that ``load`` returned.
        """
        ...

    def forward(self, context: list[int], rows: list[int], count: int) -> float | None:
        """Seconds of one pass over the first ``count`` of ``rows``, each scored, on top of ``context``.

        What comes before and after, the context's own passes and the rollback, is not counted. None if the engine
        offers no such pass.
        """
        ...


def answer(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request."""
    arguments = dict(request)
    what = arguments.pop("do")
    if what == "load":
        return engine.load(**arguments)
    if what == "generate":
        return engine.generate(**arguments)
    if what == "forward":
        return {"seconds": forward(engine, **arguments)}
    if what == "memory":
        return memory()
    return {"error": f"no request {what!r}; there are load, generate, forward and memory"}


def forward(
    engine: Engine, context: list[int], rows: list[int], counts: list[int], times: int
) -> dict[str, list[float]]:
    """Seconds of ``times`` passes at each count, the counts in turn, after one round that is not reported."""
    seconds: dict[str, list[float]] = {str(count): [] for count in counts}
    for turn in range(times + 1):
        for count in counts:
            taken = engine.forward(context, rows, count)
            if turn and taken is not None:
                seconds[str(count)].append(taken)
    return seconds


def memory() -> dict[str, int]:
    """This process's physical memory now and at its peak, file pages that it has mapped and touched included."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            fields = dict(line.split(":", 1) for line in status)
        # Not getrusage: its maximum begins with that of the process that started this one.
        return {
            "resident_bytes": int(fields["VmRSS"].split()[0]) * 1024,
            "peak_bytes": int(fields["VmHWM"].split()[0]) * 1024,
        }
    except (OSError, KeyError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return {"resident_bytes": peak, "peak_bytes": peak}


def serve(engine: Engine | None, why_missing: str, requests: TextIO, replies: TextIO) -> None:
    """Answer ``requests`` until they end."""
    for line in requests:
        try:
            reply = {"missing": why_missing} if engine is None else answer(engine, json.loads(line))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def reply_stream() -> TextIO:
    """Stdout for replies alone; from here on whatever libraries print goes to stderr."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream


def main() -> None:
    """Serve the adapter that the command line names."""
    replies = reply_stream()
    engine, why_missing = None, ""
    try:
        engine = importlib.import_module(sys.argv[1]).Engine()
    except ImportError as error:
        why_missing = str(error)
    serve(engine, why_missing, sys.stdin, replies)


if __name__ == "__main__":
    main()
