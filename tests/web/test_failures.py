"""What goes wrong is told clearly, and the page goes on afterwards."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.web.fake_server import FakeServer, serving
from tests.web.helpers import ask, holds, opened, settled

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_stop_ends_the_stream_and_keeps_what_came(page: Page, fake: FakeServer) -> None:
    fake.pause = 0.3
    opened(page, fake)
    page.fill("#prompt", "Go on for long.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tokens .token.recovered")
    page.click("text=Stop")
    page.wait_for_selector("text=Stopped.")
    count = page.locator(".tokens .token").count()
    assert 0 < count < 48
    deadline = time.monotonic() + 5.0
    while fake.open_streams and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    assert fake.open_streams == 0
    fake.pause = 0.001
    ask(page, "Once more.")


def test_stop_in_a_race_stops_both_lanes(page: Page, fake: FakeServer) -> None:
    fake.pause = 0.3
    opened(page, fake)
    page.click("#tab-race")
    page.fill("#prompt", "Run.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".lane .token.recovered")
    page.click("text=Stop")
    settled(page)
    assert len(fake.requests) == 1
    assert page.locator(".lane").last.locator(".token").count() == 0
    assert page.locator(".verdict.identical").count() == 0


def test_a_model_that_is_being_loaded_is_waited_for(page: Page, fake: FakeServer) -> None:
    fake.loading = True
    page.goto(fake.url)
    page.wait_for_selector(".banner.bad >> text=The server is not ready yet")
    fake.loading = False
    page.wait_for_selector(".banner.good")


@pytest.mark.parametrize(
    ("break_it", "title"),
    [
        ({"cut_after": 3}, "The connection broke off."),
        ({"fail_after": 3}, "The request failed while it ran."),
        ({"refusal": (400, {"message": "top_p=7: too large", "param": "top_p"})}, "The server refused “top_p”."),
        ({"refusal": (429, {"message": "full"})}, "The server has too many requests waiting."),
        ({"refusal": (500, {"message": "it failed"})}, "The server answered with an error (500)."),
        ({"key": "sk-right"}, "The API key is missing or wrong."),
    ],
)
def test_a_failure_is_told_and_can_be_tried_again(
    page: Page, fake: FakeServer, break_it: dict[str, object], title: str
) -> None:
    opened(page, fake)
    for name, value in break_it.items():
        setattr(fake, name, value)
    page.fill("#prompt", "Hello")
    page.keyboard.press("Enter")
    page.wait_for_selector(".problem")
    assert page.inner_text(".problem strong") == title
    assert page.locator(".problem").get_attribute("role") == "alert"
    for name in break_it:
        setattr(fake, name, None)
    page.click(".problem button")
    holds(page.locator(".tokens .token"), 48)
    assert page.locator(".problem").count() == 0
    assert page.locator(".turn-card").count() == 1


def test_a_server_that_asks_for_a_key_gets_it_and_it_is_not_kept(page: Page, fake: FakeServer) -> None:
    fake.key = "sk-right"
    page.goto(fake.url)
    page.click(".banner.bad button:has-text('Enter key')")
    page.wait_for_selector("input[name=key]:focus")
    page.keyboard.type("sk-right")
    page.wait_for_selector(".banner.good")
    ask(page)
    assert page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
    page.reload()
    page.wait_for_selector(".banner.bad")


def test_a_server_that_goes_away_is_told_and_found_again(page: Page) -> None:
    fake = FakeServer()
    with serving(fake.app()) as url:
        opened(page, FakeServer(url=url))
        port = int(url.rsplit(":", 1)[1])
    page.fill("#prompt", "Hello?")
    page.keyboard.press("Enter")
    page.wait_for_selector(".problem >> text=The server does not answer")
    with serving(fake.app(), port):
        page.click(".problem button")
        holds(page.locator(".tokens .token"), 48)
