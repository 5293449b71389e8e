"""A browser for all tests of the page, and a page that fails the test on any script error or policy violation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.server.web import DIST
from tests.web.fake_server import FakeServer, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).parent


def _browser_path() -> str | None:
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a browser, saying what is missing."""
    reason = None
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        reason = "playwright is not installed: pip install -r requirements-dev.txt"
    if reason is None and _browser_path() is None:
        reason = "no browser is installed: apt-get install chromium"
    if reason is None and not (DIST / "index.html").exists():
        reason = "the playground is not built: make web"
    if reason is not None:
        for item in items:
            if HERE in item.path.parents and "browser" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # Chromium has no sandbox for root, as which containers run; the page is ours.
        args = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        launched = driver.chromium.launch(executable_path=_browser_path(), args=args)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def _served() -> Iterator[FakeServer]:
    fake = FakeServer()
    with serving(fake.app()) as url:
        fake.url = url
        yield fake


@pytest.fixture
def fake(_served: FakeServer) -> FakeServer:
    """The fake server as it begins."""
    fresh = FakeServer(url=_served.url)
    for name, value in vars(fresh).items():
        setattr(_served, name, value)
    return _served


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of its own; parametrise with settings of the browser's context."""
    context = browser.new_context(**getattr(request, "param", {}))
    opened = context.new_page()
    opened.set_default_timeout(10_000)
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "console",
        lambda message: problems.append(message.text) if "Content Security Policy" in message.text else None,
    )
    yield opened
    context.close()
    assert problems == []
