"""The playground over the real server and SmolLM2."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.config import EngineConfig, SpeculativeConfig
from outrider.server.app import create_app
from outrider.server.settings import ServerSettings
from tests.web.fake_server import serving

if TYPE_CHECKING:
    from playwright.sync_api import Page

KEY = "sk-of-a-test"
PROMPT = "Repeat three times: the quick brown fox jumps over the lazy dog."


@pytest.fixture(scope="module")
def url(smollm2_path: Path) -> Iterator[str]:
    # Not adaptive: tests know what is drafted, however busy the machine.
    speculative = SpeculativeConfig(method="ngram", adaptive=False)
    config = EngineConfig(model=str(smollm2_path), speculative=speculative)
    with serving(create_app(config, ServerSettings(api_key=KEY))) as url:
        deadline = time.monotonic() + 120.0
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health"):
                    break
            except urllib.error.HTTPError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield url


def opened(page: Page, url: str, max_tokens: int) -> None:
    page.set_default_timeout(60_000)
    page.goto(url)
    page.click(".banner.bad button:has-text('Enter key')")
    page.fill("input[name=key]", KEY)
    page.wait_for_selector(".banner.good:has-text('Speculation active: ngram')")
    page.fill("input[name=max_tokens]", str(max_tokens))
    page.fill("input[name=temperature]", "0.5")


@pytest.mark.model
def test_an_answer_is_marked_as_the_engine_made_it(page: Page, url: str) -> None:
    opened(page, url, max_tokens=32)
    page.fill("#prompt", PROMPT)
    page.keyboard.press("Enter")
    page.wait_for_selector(".figures dd:has-text('length'), .figures dd:text-is('stop')")
    sources = page.locator(".tokens .token").evaluate_all("all => all.map(one => one.dataset.source)")
    assert sources[0] == "target"
    assert "accepted" in sources
    page.locator(".tokens .token.accepted").first.hover()
    assert page.locator(".tip .figure").first.inner_text().endswith("%")
    page.fill("input[name=top_p]", "7")
    page.fill("#prompt", PROMPT)
    page.keyboard.press("Enter")
    page.wait_for_selector(".problem:has-text('The server refused “top_p”')")


@pytest.mark.model
def test_both_lanes_of_a_race_are_identical(page: Page, url: str) -> None:
    opened(page, url, max_tokens=32)
    page.click("#tab-race")
    page.fill("#prompt", PROMPT)
    page.keyboard.press("Enter")
    page.wait_for_selector(".verdict.identical, .verdict.different")
    assert page.inner_text(".verdict").startswith("✓ Identical: all ")
    assert "ngram" in page.locator(".lane").first.inner_text()
    assert "inactive because" in page.locator(".lane").last.inner_text()
    assert page.locator(".lane").first.locator(".token.accepted").count() > 0
    assert page.locator(".lane").last.locator(".token:not(.target)").count() == 0
