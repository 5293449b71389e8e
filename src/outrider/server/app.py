"""Puts the server together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.cors import CORSMiddleware

from outrider import __version__
from outrider.config import EngineConfig
from outrider.engine.setup import ReadyEngine, build_engine
from outrider.server import chat, completions, info
from outrider.server.errors import install_handlers
from outrider.server.gate import Gate, Guard
from outrider.server.serving import Serving
from outrider.server.settings import ServerSettings
from outrider.server.web import mount_playground

logger = logging.getLogger(__name__)


def create_app(
    config: EngineConfig,
    settings: ServerSettings | None = None,
    *,
    build: Callable[[EngineConfig], ReadyEngine] = build_engine,
    on_failure: Callable[[], None] | None = None,
) -> FastAPI:
    """The whole application. The model is loaded once the server has started, while ``/health`` says 503.

    ``app.state.serving`` is its state. ``on_failure`` is called if loading fails, with the reason in ``failure`` there.
    """
    settings = settings or ServerSettings()
    serving = Serving(config, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(asyncio.to_thread(serving.load, build))
        loading.add_done_callback(finished)
        try:
            yield
        finally:
            await asyncio.gather(loading, return_exceptions=True)
            await asyncio.to_thread(serving.close)

    def finished(loading: asyncio.Task[None]) -> None:
        if not loading.cancelled() and loading.exception() is not None and on_failure is not None:
            on_failure()

    # The usual pages about the API fetch their scripts from elsewhere; the document itself is at /openapi.json.
    app = FastAPI(title="Outrider", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.serving = serving
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    for part in (chat, completions, info):
        app.include_router(part.router)
    mount_playground(app)
    install_handlers(app)
    app.add_middleware(Guard, settings=settings)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(Gate)
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, without the framework's own errors, which are answered as 400 here."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema
