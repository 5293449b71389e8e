"""Runs the application on a socket until it is told to stop, and lets running requests end first."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from types import FrameType

import uvicorn

from outrider.config import EngineConfig
from outrider.errors import ConfigError, OutriderError
from outrider.server.app import create_app
from outrider.server.serving import Serving
from outrider.server.settings import ServerSettings

logger = logging.getLogger(__name__)

_FLUSH_S = 5
"""What has been said may still be on its way to clients for so many seconds after the last request has ended."""


def listen(host: str, port: int) -> socket.socket:
    """A socket to serve on; port 0 takes a free one. Raises ``ConfigError`` if it can not be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        if os.name != "nt":
            # A server that was killed leaves its port to the next one at once.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}; choose another --host or --port") from None
    return listener


class _Server(uvicorn.Server):
    """At the first signal it drains, serving on meanwhile; at the second it stops at once."""

    def __init__(self, config: uvicorn.Config, serving: Serving) -> None:
        super().__init__(config)
        self._serving = serving
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self.signals: list[int] = []

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        self.signals.append(sig)
        if len(self.signals) > 1 or self._loop is None:
            self.should_exit = self.force_exit = True
            return
        self._loop.call_soon_threadsafe(self._begin_to_drain)

    def _begin_to_drain(self) -> None:
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        logger.info("shutting down: running requests have %g s to end", self._serving.settings.grace_s)
        try:
            await self._serving.drain()
        finally:
            self.should_exit = True


def run(config: EngineConfig, settings: ServerSettings, listener: socket.socket) -> None:
    """Serve until a signal says to stop. Raises what loading the model raised."""

    def stop() -> None:
        server.should_exit = True

    app = create_app(config, settings, on_failure=stop)
    serving: Serving = app.state.serving
    uvicorn_config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=_FLUSH_S, lifespan="on"
    )
    server = _Server(uvicorn_config, serving)
    asyncio.run(server.serve(sockets=[listener]))
    if serving.failure is not None:
        raise serving.failure
    if not server.started:
        raise OutriderError("the server did not start; its log says why")
