"""The playground's page: a handful of files that ``make web`` bundles, served with a policy that lets in nothing else.

Only the names in ``_ASSETS`` are ever read, so no path of a request reaches the file system. Knows nothing about the
API that the page talks to.
"""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

DIST = Path(__file__).parent / "web" / "dist"

_ASSETS = {
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "favicon.svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_UNBUILT = """\
Outrider is running, but its playground is not built.

To build it: install Node.js 20 or newer, run "make web" in Outrider's repository, and reload this page.
The API does not need it: POST /v1/chat/completions, /v1/completions, GET /v1/models, /openapi.json.
"""


def mount_playground(app: Starlette, dist: Path = DIST) -> None:
    """Answer ``/`` with the page, and ``/assets/NAME`` with the files it loads; both without an API key.

    A page that is not built answers 200 with how to build it, and its files 404.
    """

    async def page(_: Request) -> Response:
        try:
            return Response((dist / "index.html").read_bytes(), headers=_HEADERS, media_type="text/html; charset=utf-8")
        except FileNotFoundError:
            return PlainTextResponse(_UNBUILT, headers=_HEADERS)

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        media_type = _ASSETS.get(name)
        try:
            if media_type is not None:
                return Response((dist / name).read_bytes(), headers=_HEADERS, media_type=media_type)
        except FileNotFoundError:
            pass
        return PlainTextResponse("no such file\n", 404, headers=_HEADERS)

    app.add_route("/", page, include_in_schema=False)
    app.add_route("/assets/{name:path}", asset, include_in_schema=False)
