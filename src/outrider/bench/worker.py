"""The near side of a worker process: start it, ask it, end it. Knows nothing about engines.

What a worker answers is described in ``peers/serve.py``. Workers stay loaded for the whole measurement and wait in a
read while others run.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from outrider.errors import OutriderError

END_SECONDS = 10.0
"""How long a worker may take to end by itself once its input has ended."""


class WorkerError(OutriderError):
    """An engine's process ended, was silent for too long, or answered with an error."""


class MissingEngineError(WorkerError):
    """The engine is not installed where it was looked for."""


class Worker:
    """One process that answers a JSON line with a JSON line."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start it. Raises ``MissingEngineError`` if the program cannot be started."""
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(env),
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            self._errors.close()
            raise MissingEngineError(f"{command[0]} cannot be run: {error.strerror}") from None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def ask(self, do: str, *, timeout: float, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for its reply, at most ``timeout`` seconds.

        Raises ``MissingEngineError`` if the engine is not installed, ``WorkerError`` for everything else.
        """
        stdin = self._process.stdin
        if stdin is None:
            raise WorkerError(f"{self.name}: its worker has no input")
        try:
            stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            stdin.flush()
            line = self._lines.get(timeout=timeout)
        except (BrokenPipeError, ValueError):
            line = None
        except queue.Empty:
            self._process.kill()
            raise WorkerError(f"{self.name}: no answer to {do!r} within {timeout:.0f} s") from None
        if line is None:
            raise WorkerError(f"{self.name}: its worker ended with code {self._process.wait()}{self._last_words()}")
        try:
            reply = json.loads(line)
        except json.JSONDecodeError:
            reply = None
        if not isinstance(reply, dict):
            raise WorkerError(f"{self.name}: its worker answered {line[:200]!r}, which is no JSON object")
        if "missing" in reply:
            raise MissingEngineError(str(reply["missing"]))
        if "error" in reply:
            raise WorkerError(f"{self.name}: {reply['error']}")
        return reply

    def close(self) -> None:
        """End the process: its input ends, and if that is not enough it is killed."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it ended with a request unread
                self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(None)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1]}" if lines else ""
