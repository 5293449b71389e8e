"""The playground in a real browser, over canned answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.outputs import SpeculationStatus
from tests.web.fake_server import MODEL, PATTERN, WORDS, FakeServer, canned_tokens
from tests.web.helpers import ask, holds, opened, race, settled

if TYPE_CHECKING:
    from playwright.sync_api import Page

TEXT = "".join(WORDS[index % len(WORDS)] for index in range(48))
DARK = {"color_scheme": "dark"}
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True}


def width_of(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


def test_the_page_tells_the_model_and_that_speculation_is_active(page: Page, fake: FakeServer) -> None:
    opened(page, fake)
    assert page.inner_text(".model") == MODEL
    assert page.inner_text(".banner") == "Speculation active: ngram, up to 4 tokens per step"
    assert page.locator(".legend .token").all_inner_texts() == ["target", "accepted", "recovered", "bonus"]


def test_the_banner_gives_the_reason_where_speculation_is_not_active(page: Page, fake: FakeServer) -> None:
    fake.speculation = SpeculationStatus(inactive_reason="the draft model has another vocabulary")
    opened(page, fake)
    assert page.inner_text(".banner") == "Speculation inactive because the draft model has another vocabulary"
    fake.speculation = SpeculationStatus("ngram", 4)
    page.reload()
    page.select_option("select[name=method]", "off")
    assert "turned off in the settings" in page.inner_text(".banner")


def test_a_chat_is_marked_token_by_token_with_colour_and_underline(page: Page, fake: FakeServer) -> None:
    tokens = ask(opened(page, fake))
    assert tokens.evaluate_all("all => all.map(one => one.textContent).join('')") == TEXT
    assert tokens.evaluate_all("all => all.map(one => one.dataset.source)") == [
        PATTERN[index % len(PATTERN)] for index in range(48)
    ]
    looks = {
        source: page.locator(f".tokens .token.{source}").first.evaluate(
            "one => [getComputedStyle(one).textDecorationStyle, getComputedStyle(one).textDecorationColor]"
        )
        for source in set(PATTERN)
    }
    assert len({style for style, _ in looks.values()}) == len({colour for _, colour in looks.values()}) == 4
    sent = fake.requests[0]
    assert sent["token_details"] is True
    assert sent["messages"] == [{"role": "user", "content": "Say something."}]
    assert (sent["temperature"], sent["seed"], sent["max_tokens"]) == (0.7, 7, 200)
    assert "speculative_config" not in sent


def test_a_second_message_carries_the_conversation_and_settings_are_sent(page: Page, fake: FakeServer) -> None:
    ask(opened(page, fake))
    page.select_option("select[name=method]", "ngram")
    page.fill("input[name=k]", "2")
    page.fill("input[name=seed]", "")
    page.fill("textarea[name=system]", "Be brief.")
    ask(page, "And then?")
    sent = fake.requests[1]
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "user"]
    assert sent["messages"][2]["content"] == TEXT
    assert sent["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 2}
    assert "seed" not in sent


def test_a_model_without_a_chat_template_completes(page: Page, fake: FakeServer) -> None:
    fake.chat = False
    opened(page, fake)
    page.wait_for_selector("#tab-completion[aria-selected=true]")
    assert page.locator("#tab-chat").is_disabled()
    race(page)
    assert [sent["prompt"] for sent in fake.requests] == ["Run.", "Run."]


def test_a_completion_is_sent_as_a_prompt(page: Page, fake: FakeServer) -> None:
    opened(page, fake)
    page.click("#tab-completion")
    page.fill("#prompt", "Once upon")
    page.click("button[type=submit]")
    page.wait_for_selector(".tokens .token")
    settled(page)
    assert fake.requests[0]["prompt"] == "Once upon"
    assert "messages" not in fake.requests[0]


def test_hovering_shows_the_probabilities_and_the_rejected_token(page: Page, fake: FakeServer) -> None:
    ask(opened(page, fake))
    page.locator(".tokens .token.accepted").first.hover()
    tip = page.locator(".tip")
    assert "81.2 %" in tip.inner_text()
    assert "90.0 %" in tip.inner_text()
    assert "90.2 %" in tip.inner_text()
    page.locator(".tokens .token.target").first.hover()
    assert "Draft" not in tip.inner_text()  # nobody drafted it
    page.locator(".tokens .token.recovered").first.hover()
    text = tip.inner_text()
    assert "␣cat" in text
    assert [figure in text for figure in ("3.0 %", "60.0 %", "5.0 %")] == [True] * 3
    page.keyboard.press("Escape")
    assert tip.count() == 0


def test_tokens_are_reached_by_keyboard_in_one_tab_stop(page: Page, fake: FakeServer) -> None:
    opened(page, fake)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "tab-chat"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-completion"
    page.keyboard.press("ArrowLeft")
    ask(page)
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.dataset.index") == "0"
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.dataset.index") == "47"
    assert "bonus" in page.inner_text(".tip")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "prompt"
    assert page.locator(".tip").count() == 0


def test_the_scrubber_goes_through_the_run_step_by_step(page: Page, fake: FakeServer) -> None:
    tokens = ask(opened(page, fake))
    steps = canned_tokens(speculation=True)
    page.locator("input[type=range]").focus()
    page.keyboard.press("Home")
    assert tokens.count() == 0
    page.click("[aria-label=Forward]")
    page.click("[aria-label=Forward]")
    assert tokens.count() == len(steps[0]) + len(steps[1])
    assert page.inner_text(".scrubber-note") == (
        f"Step 2 of {len(steps)}: suffix drafted, K = 3; 2 accepted, then recovered"
    )
    page.locator("input[type=range]").focus()
    page.keyboard.press("End")
    for _ in range(3):
        page.click("[aria-label=Back]")
    assert tokens.count() < 48
    page.click("[aria-label=Play]")
    page.wait_for_selector(f".scrubber-note:has-text('Step {len(steps)} of')")
    assert tokens.count() == 48


def test_each_step_tells_its_drafter_or_why_it_did_not_draft(page: Page, fake: FakeServer) -> None:
    tokens = ask(opened(page, fake))
    assert fake.requests[0]["detailed_metrics"] is True

    def told(place: int) -> str:
        """What the card of the token at ``place`` says of its step."""
        tokens.nth(place).hover()
        return page.inner_text(".tip-pass")

    # Token 0 is step 1, tokens 1 to 3 step 2, 4 to 7 step 3, 8 step 4, 9 to 11 step 5.
    assert told(0) == "K = 0: this pass read the prompt"
    assert told(1) == told(3) == "suffix drafted, K = 3, 2 accepted"
    assert told(4) == "ngram drafted, K = 3, 3 accepted"  # the server names no drafter of this step, and has one only
    assert told(8) == "K = 0: nothing retrieved"
    assert told(17) == "suffix drafted, K = 3, 2 accepted"
    page.mouse.move(0, 0)
    page.locator("input[type=range]").focus()
    page.keyboard.press("Home")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    note = page.inner_text(".scrubber-note")
    assert note.endswith(": one token, K = 0: nothing retrieved")
    assert page.locator("input[type=range]").get_attribute("aria-valuetext") == note
    page.select_option("select[name=method]", "off")
    ask(page, "And without?")
    page.locator(".tokens").last.locator(".token").nth(5).hover()
    assert page.inner_text(".tip-pass") == "K = 0: turned off in this request"


def test_a_stopped_or_older_answer_tells_no_more_than_it_can(page: Page, fake: FakeServer) -> None:
    fake.fail_after = 3
    tokens = ask(opened(page, fake))
    tokens.nth(1).hover()
    page.wait_for_selector(".tip")
    assert page.locator(".tip-pass").count() == 0
    assert page.inner_text(".scrubber-note").endswith(": 3 accepted, then bonus")


def test_thoughts_are_folded_away_and_not_said_again(page: Page, fake: FakeServer) -> None:
    fake.thinks = True
    ask(opened(page, fake))
    folded = page.locator("details.thinking")
    assert folded.locator("summary").inner_text() == "Thoughts 8 tokens"
    assert not folded.locator(".tokens").is_visible()
    said = page.locator(".tokens").last.locator(".token")
    assert said.evaluate_all("all => all.map(one => one.textContent).join('')") == TEXT
    folded.locator("summary").click()
    assert folded.locator(".tokens").inner_text().startswith("<think>\nLet me see")
    ask(page, "And then?")
    assert fake.requests[1]["messages"][1] == {"role": "assistant", "content": TEXT}
    race(page)
    assert page.inner_text(".verdict") == "✓ Identical: all 56 tokens"
    assert page.locator(".lane details.thinking").count() == 2


def test_figures_are_those_of_the_run(page: Page, fake: FakeServer) -> None:
    ask(opened(page, fake))
    figures = dict(
        zip(page.locator(".figures dt").all_inner_texts(), page.locator(".figures dd").all_inner_texts(), strict=True)
    )
    assert figures["tokens"] == "48"
    assert figures["passes of the model"] == "18"
    assert figures["tokens per drafted pass"] == "3.50"
    assert figures["ended by"] == "length"
    assert float(figures["tokens/s"]) > 0
    label = page.locator("figure:has-text('Acceptance') [role=img]").get_attribute("aria-label")
    assert label == "draft 1: 100 %, draft 2: 100 %, draft 3: 50 %"


def test_a_race_ends_with_an_identical_badge_and_can_be_replayed(page: Page, fake: FakeServer) -> None:
    race(opened(page, fake))
    assert page.inner_text(".verdict") == "✓ Identical: all 48 tokens"
    assert "inactive because turned off in this request" in page.locator(".lane").last.inner_text()
    first, second = fake.requests
    assert second["speculative_config"] == "off"
    assert (first["seed"], first["messages"]) == (second["seed"], second["messages"])
    assert page.locator(".lane").first.locator(".token").count() == 48
    assert page.inner_text(".speedup").endswith("× the tokens per second")
    page.locator("input[type=range]").focus()
    page.keyboard.press("Home")
    assert page.locator(".lane .token").count() == 0
    page.click("[aria-label=Play]")
    holds(page.locator(".lane .token"), 96)


def test_a_race_warns_where_the_drafter_remembers_earlier_answers(page: Page, fake: FakeServer) -> None:
    race(opened(page, fake))
    assert page.locator("text=remembers the answers").count() == 0
    fake.speculation = SpeculationStatus("suffix", 15)
    page.reload()
    race(opened(page, fake))
    assert page.locator("text=remembers the answers").count() == 1


def test_a_race_says_where_the_lanes_differ(page: Page, fake: FakeServer) -> None:
    fake.differs_at = 5
    race(opened(page, fake))
    assert page.inner_text(".verdict") == "They differ from token 6 on"
    assert page.locator(".token.differs").count() == 2


@pytest.mark.parametrize("what", ["run", "race"])
def test_an_exported_file_stands_alone_whatever_the_text_holds(
    page: Page, fake: FakeServer, what: str, tmp_path: Path
) -> None:
    opened(page, fake)
    page.fill("input[name=key]", "sk-secret")
    if what == "run":
        ask(page, "Is </script><script>document.title = 'broken'</script> <!-- safe?")
    else:
        race(page)
    with page.expect_download() as download:
        page.click("text=Export HTML")
    path = tmp_path / "exported.html"
    download.value.save_as(path)
    source = path.read_text()
    assert "sk-secret" not in source
    assert "http://" not in source.replace("http://www.w3.org/", "")
    assert len(source) < 400_000
    alone = page.context.new_page()
    alone.on("request", lambda request: pytest.fail(request.url) if not request.url.startswith("file:") else None)
    alone.goto(path.as_uri())
    tokens = alone.locator(".tokens").first.locator(".token")
    assert tokens.evaluate_all("all => all.map(one => one.textContent).join('')") == TEXT
    assert alone.title().startswith(f"Outrider: {what} of {MODEL}")
    alone.locator(".token.recovered").first.hover()
    assert "␣cat" in alone.inner_text(".tip")
    if what == "run":
        assert "</script><script>" in alone.inner_text(".said")
        alone.click("[aria-label=Back]")
        assert tokens.count() < 48
    else:
        assert alone.inner_text(".verdict") == "✓ Identical: all 48 tokens"


@pytest.mark.parametrize("page", [PHONE], indirect=True)
def test_a_phone_shows_everything_without_scrolling_sideways(page: Page, fake: FakeServer) -> None:
    opened(page, fake)
    assert width_of(page) == 360
    ask(page, "a" * 200)
    assert width_of(page) == 360
    page.locator(".tokens .token.recovered").first.tap()
    box = page.locator(".tip").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360
    race(page)
    assert width_of(page) == 360
    lanes = [lane.bounding_box() for lane in page.locator(".lane").all()]
    assert lanes[0] is not None
    assert lanes[1] is not None
    assert lanes[1]["y"] >= lanes[0]["y"] + lanes[0]["height"]


@pytest.mark.parametrize("page", [{}, DARK], indirect=True, ids=["light", "dark"])
def test_text_and_marks_have_contrast(page: Page, fake: FakeServer) -> None:
    ask(opened(page, fake))
    script = """() => {
      const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
      const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
        .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
      const ratio = (a, b) => {
        const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
        return (x + 0.05) / (y + 0.05);
      };
      const style = (selector) => getComputedStyle(document.querySelector(selector));
      const card = parse(style('.card').backgroundColor), body = parse(style('body').backgroundColor);
      const found = {};
      for (const source of ['target', 'accepted', 'recovered', 'bonus']) {
        found[source] = ratio(parse(style(`.tokens .token.${source}`).textDecorationColor), card);
      }
      found.text = ratio(parse(style('.said').color), card);
      found.muted = ratio(parse(style('.legend .muted').color), body);
      return [light(body), found];
    }"""
    background, found = page.evaluate(script)
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert background < 0.05 if dark else background > 0.8
    assert min(found["text"], found["muted"]) >= 4.5, found
    assert min(found[source] for source in set(PATTERN)) >= 3.0, found
