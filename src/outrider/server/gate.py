"""What every request passes: its id, the log, the key, its body's size, and a last catch for what nobody foresaw."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.server.errors import ApiError, api_error
from outrider.server.settings import ServerSettings

logger = logging.getLogger("outrider.access")

OPEN_PATHS = ("/health", "/", "/favicon.ico")
OPEN_FOLDERS = ("/assets/",)
"""What is served without a key: whether the server is up, and the page that asks for the key."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class Gate:
    """Outermost: an ``x-request-id`` for each answer, a line in the log for each request, without body or key."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        began, status = time.monotonic(), 499

        async def with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, with_id)
        finally:
            client = scope.get("client")
            fields = {
                "request_id": request_id,
                "client": client[0] if client else None,
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "duration_s": round(time.monotonic() - began, 6),
            }
            logger.info("%(method)s %(path)s %(status)d %(duration_s).3fs", fields, extra={"fields": fields})


class Guard:
    """Innermost: the key, the body, and what was raised and not caught."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._key = None if settings.api_key is None else settings.api_key.encode()
        self._max_body_bytes = settings.max_body_bytes
        self._body_timeout_s = settings.body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, or answer with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            self._check_key(scope)
            body = await self._body(scope, receive)
            if body is None:
                return  # the client has gone
            await self._app(scope, _replay(body, receive), watched)
        except Exception as error:
            if begun:
                raise
            await api_error(error).response()(scope, receive, send)

    def _check_key(self, scope: Scope) -> None:
        if self._key is None or is_open(scope["path"]):
            return
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        # Compared in full whatever it is, so that the time taken says nothing about the key.
        if not hmac.compare_digest(given.strip().encode("latin-1"), self._key) or scheme.lower() != "bearer":
            raise ApiError(
                401,
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._body_timeout_s):
                return await self._read(receive)
        except TimeoutError:
            raise ApiError(
                408, f"the body took longer than {self._body_timeout_s:g} s to arrive; send it again", param="body"
            ) from None

    async def _read(self, receive: Receive) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_body_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body is larger than {self._max_body_bytes} bytes; send less",
            param="body",
            code="body_too_large",
            headers={"Connection": "close"},
        )


def is_open(path: str, folders: Sequence[str] = OPEN_FOLDERS) -> bool:
    """True if ``path`` needs no key."""
    return path in OPEN_PATHS or (path.startswith(tuple(folders)) and ".." not in path)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the body in one piece, then whatever comes."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again
