"""Errors as OpenAI's clients expect them: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from outrider.errors import EngineUnavailableError, InvalidRequestError, OutriderError, QueueFullError

logger = logging.getLogger(__name__)

_LONGEST_MESSAGE = 600
"""Characters; what a client sent is quoted in messages, and may be long."""
RETRY_AFTER_S = 1

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ErrorDetail(BaseModel):
    """What went wrong, and with which field."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        if status in (429, 503):
            self.headers.setdefault("Retry-After", str(RETRY_AFTER_S))

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        message = " ".join(self.message.split())
        if len(message) > _LONGEST_MESSAGE:
            message = message[:_LONGEST_MESSAGE] + "…"
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The whole answer. ASCII only, for what is quoted need not be valid Unicode."""
        text = json.dumps(self.body())
        return Response(text, self.status, headers=self.headers, media_type="application/json")


def bad_request(message: str, param: str | None, *, code: str | None = None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, message, param=param, code=code)


def api_error(error: Exception) -> ApiError:
    """Any exception as an answer; what nobody foresaw is logged and not told."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequestError):
        return ApiError(400, str(error), param=error.param)
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), code="queue_full")
    if isinstance(error, EngineUnavailableError):
        return ApiError(503, str(error), code="unavailable")
    if isinstance(error, OutriderError):
        return ApiError(500, str(error))
    logger.error("a request failed unexpectedly", exc_info=error)
    return ApiError(500, "the server failed on this request; its log says how")


def install_handlers(app: FastAPI) -> None:
    """Answer every foreseen exception in OpenAI's form. The others are caught by the gate."""

    async def ours(_: Request, error: Exception) -> Response:
        return api_error(error).response()

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return validation_error(error.errors(), error.body).response()

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _http_error(error).response()

    app.add_exception_handler(ApiError, ours)
    app.add_exception_handler(OutriderError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def _http_error(error: HTTPException) -> ApiError:
    if error.status_code == 400:  # what the framework says when a body can not be read
        return ApiError(400, "the body is not valid JSON in UTF-8; send a JSON object", param="body")
    phrase = HTTPStatus(error.status_code).phrase.lower()
    return ApiError(error.status_code, f"{phrase}: {error.detail}", headers=error.headers)


def validation_error(problems: Sequence[Any], body: Any) -> ApiError:
    """The problem that pydantic found deepest in ``body``, which is what the client meant where types were tried."""
    paths = [field_path(each["loc"][1:], body, missing=each["type"] == "missing") for each in problems]
    param = max(paths, key=lambda path: 0 if path is None else 1 + path.count(".") + path.count("["))
    first = problems[paths.index(param)]
    kind, given = first["type"], first.get("input")
    if kind == "json_invalid":
        return bad_request("the body is not valid JSON; send a JSON object in UTF-8", "body")
    if param is None:
        return bad_request("the body must be a JSON object; send it with Content-Type: application/json", "body")
    if kind == "missing":
        return bad_request(f"{param} is required", param)
    same_place = [each for each, path in zip(problems, paths, strict=True) if path == param]
    reasons = " or ".join(dict.fromkeys(_lower(each["msg"].removeprefix("Value error, ")) for each in same_place))
    shown = repr(given)
    shown = shown if len(shown) <= 80 else shown[:80] + "…"
    return bad_request(f"{param}={shown}: {reasons}", param)


def field_path(location: Sequence[int | str], body: Any, *, missing: bool = False) -> str | None:
    """``messages[0].role`` from pydantic's location, without the names of the types that were tried."""
    path, here = "", body
    for place, part in enumerate(location):
        if isinstance(part, int) and isinstance(here, list) and part < len(here):
            path, here = f"{path}[{part}]", here[part]
        elif isinstance(part, str) and (
            (isinstance(here, dict) and part in here) or (missing and place == len(location) - 1)
        ):
            path = f"{path}.{part}" if path else part
            here = here.get(part) if isinstance(here, dict) else None
    return path or None


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def json_response(content: Mapping[str, Any], status: int = 200) -> JSONResponse:
    """An answer that is not an error."""
    return JSONResponse(content, status)
