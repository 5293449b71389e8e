"""What a person does on the page, waiting until it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.web.fake_server import FakeServer

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def opened(page: Page, fake: FakeServer) -> Page:
    page.goto(fake.url)
    page.wait_for_selector(".banner:has-text('Speculation')")
    return page


def ask(page: Page, text: str = "Say something.") -> Locator:
    """Send ``text`` and wait until the answer is complete; its tokens."""
    before = page.locator(".turn-card").count()
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    page.locator(".turn-card").nth(before).wait_for()
    settled(page)
    return page.locator(".tokens").last.locator(".token")


def holds(locator: Locator, count: int) -> None:
    """Wait until there are ``count`` of them."""
    from playwright.sync_api import expect

    expect(locator).to_have_count(count, timeout=10_000)


def settled(page: Page) -> None:
    page.wait_for_selector("main[aria-busy=false]")


def race(page: Page) -> None:
    page.click("#tab-race")
    page.fill("#prompt", "Run.")
    page.click("button[type=submit]")
    page.wait_for_selector(".lane")
    settled(page)
