"""The page of a server, in Chromium: the engine live, the chat, keys, keyboard, widths, axe."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from py_mini_racer import MiniRacer

from http_server.engine_client import EngineClient
from scripts.course import ROOT
from tests.book.figure_pages import VIZ, new_page, serious_faults
from tests.book.twins import twin
from tests.server.servers import app_of, client_of, on_socket, wait_for
from tests.support.fakes import FakeModel
from tests.support.server_engines import make_engine
from tiny_llm import Engine

pytestmark = pytest.mark.sampled(3, "book/live/", "book/viz/", "book/theme/", "http_server/")
LIVE = ROOT / "book" / "live"
NARROW, WIDE = 360, 1400
KEY = "open sesame"


class PacedModel(FakeModel):
    """A fake model whose calls take a while, as those of a real one do."""

    def hidden_states(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.02)
        return super().hidden_states(*args, **kwargs)


def make_paced_engine() -> Engine:
    return make_engine(model=PacedModel(), eos_token_ids=(), num_blocks=200, max_seq_len=400)


@dataclass
class Served:
    """A server, and how to open its page."""

    url: str
    client: EngineClient
    browser: Browser
    complaints: list[str] = field(default_factory=list)

    def open(self, width: int = WIDE, scheme: str = "light") -> Page:
        page = new_page(self.browser, width, scheme)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.is_own(request.url) or self.complaints.append(request.url))
        page.goto(self.url)
        return page

    def is_own(self, url: str) -> bool:
        return url.startswith((self.url, "data:"))


@pytest.fixture
def served(browser: Browser) -> Iterator[Served]:
    app = app_of(make_paced_engine)
    with on_socket(app) as url:
        served = Served(url, client_of(app), browser)
        yield served
        for context in browser.contexts:
            for page in context.pages:
                page.close()
    assert served.complaints == []


def say(page: Page, text: str, most: int = 300) -> None:
    page.locator("#most").fill(str(most))
    page.locator("#prompt").fill(text)
    page.locator("#prompt").press("Enter")


def numbers(page: Page) -> dict[str, str]:
    """The numbers of the engine, by name."""
    return {
        each.locator("dt").inner_text(): each.locator("dd").inner_text()
        for each in page.locator("#numbers > div").all()
    }


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_answer_is_streamed_and_the_engine_shown(served: Served, width: int, scheme: str) -> None:
    page = served.open(width, scheme)
    expect(page.locator("#status")).to_have_text("Ready.")
    say(page, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    expect(page.locator("#send")).to_have_text("Stop")
    expect(page.locator("#log .assistant")).not_to_be_empty()
    expect(page.locator("#timeline .prefill").first).to_be_attached()
    expect(page.locator("#timeline .decode").first).to_be_attached()
    expect(page.locator("#requests tbody tr")).to_contain_text("decodes")
    shown = numbers(page)
    assert shown["running"].startswith("1 of 4")
    assert shown["budget, last step"].startswith("1 of 8")
    assert page.evaluate("document.documentElement.className") == {"light": "light", "dark": "navy"}[scheme]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert serious_faults(page) == []
    page.locator("#send").click()
    say(page, "A", most=2)
    expect(page.locator("#requests tbody tr").last).to_contain_text("ended by length")
    expect(page.locator("#send")).to_have_text("Send")
    assert page.locator("#log").get_attribute("aria-busy") == "false"


@pytest.mark.parametrize("how", ["Escape", "Enter"])
def test_an_answer_is_stopped_by_keyboard_and_its_blocks_are_free(served: Served, how: str) -> None:
    page = served.open()
    say(page, "ABCDEFGHIJ")
    expect(page.locator("#log .assistant")).not_to_be_empty()
    assert served.client.admission.num_reqs == 1
    if how == "Enter":
        page.locator("#send").focus()
    page.keyboard.press(how)
    expect(page.locator("#log .note")).to_have_text("Stopped.")
    wait_for(lambda: served.client.admission.num_reqs == 0)
    expect(page.locator("#requests tbody tr")).to_contain_text("aborted")
    say(page, "K", most=3)
    expect(page.locator("#requests tbody tr").last).to_contain_text("ended by length")
    expect(page.locator("#send")).to_have_text("Send")
    expect(page.locator("#log .assistant")).to_have_count(2)
    wait_for(lambda: served.client.feed.stats.num_used_blocks == 0)


@pytest.mark.parametrize("name", ["qwen3-kjv-4m", "another"])
def test_a_model_that_only_continues_text_is_not_offered_as_a_chat(browser: Browser, name: str) -> None:
    with on_socket(app_of(make_paced_engine, (name,))) as url:
        page = new_page(browser, WIDE, "light")
        page.goto(url)
        expect(page.locator("#status")).to_have_text("Ready.")
        is_shipped = name != "another"
        expect(page.locator("#about")).to_be_visible(visible=is_shipped)
        expect(page.locator("#kind")).to_have_value("text" if is_shipped else "chat")
        expect(page.locator("#prompt")).to_have_value("And God said" if is_shipped else "")
        if is_shipped:
            expect(page.locator("#about")).to_contain_text("pdm run serve --model smollm2")
            with page.expect_request("**/v1/completions") as asked:
                page.locator("#send").click()
            body = asked.value.post_data_json
            assert (body["prompt"], body["temperature"]) == ("And God said", 0.7)
        page.close()


def test_a_text_is_continued_and_a_refusal_shown(served: Served) -> None:
    page = served.open()
    page.locator("#kind").select_option("text")
    say(page, "ABC", most=5)
    expect(page.locator("#send")).to_have_text("Send")
    expect(page.locator("#log .assistant")).to_have_count(1)
    say(page, "ABC" * 200)
    expect(page.locator("#log .wrong")).to_contain_text("tokens")
    page.locator("#clear").click()
    expect(page.locator("#log p")).to_have_count(0)
    served.complaints.clear()  # the browser itself reports the status 400


def test_the_keyboard_reaches_every_control(served: Served) -> None:
    page = served.open()
    expect(page.locator("#status")).to_have_text("Ready.")
    wanted = {"log", "prompt", "kind", "most", "send", "clear", "window", "pause", "requests"}
    reached = set()
    for _ in range(len(wanted) + 3):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert wanted <= reached
    page.locator("#pause").focus()
    page.keyboard.press("Space")
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
    say(page, "ABC", most=20)
    expect(page.locator("#send")).to_have_text("Send")
    assert page.locator("#timeline circle").count() == 0
    page.locator("#pause").press("Space")
    expect(page.locator("#timeline circle").first).to_be_attached()


def test_a_page_that_is_closed_is_forgotten(served: Served) -> None:
    assert served.client.feed.num_watchers == 0
    page = served.open()
    wait_for(lambda: served.client.feed.num_watchers == 1)
    page.close()
    wait_for(lambda: served.client.feed.num_watchers == 0)


def test_the_page_asks_for_the_key_and_keeps_it(browser: Browser) -> None:
    app = app_of(make_paced_engine, api_key=KEY)
    with on_socket(app) as url:
        served = Served(url, client_of(app), browser)
        page = served.open()
        expect(page.locator("#access")).to_be_visible()
        expect(page.locator("#key")).to_be_focused()
        assert serious_faults(page) == []
        assert served.client.feed.num_watchers == 0
        for key, status in (("wrong", "Waiting for the API key."), (KEY, "Ready.")):
            page.locator("#key").fill(key)
            page.locator("#key").press("Enter")
            expect(page.locator("#status")).to_have_text(status)
        say(page, "ABC", most=3)
        expect(page.locator("#log .assistant")).not_to_be_empty()
        page.reload()
        expect(page.locator("#status")).to_have_text("Ready.")
        expect(page.locator("#access")).to_be_hidden()
        assert [each for each in served.complaints if "401" not in each] == []
        page.close()


def test_a_server_that_ends_is_not_held_up_by_its_page(browser: Browser) -> None:
    app = app_of(make_paced_engine)
    with on_socket(app) as url:
        page = Served(url, client_of(app), browser).open()
        expect(page.locator("#status")).to_have_text("Ready.")
        start = time.monotonic()
        client_of(app).begin_draining()
        expect(page.locator("#status")).to_have_text("The server is shutting down.")
    assert time.monotonic() - start < 10


@pytest.fixture(scope="module")
def live() -> Iterator[MiniRacer]:
    """V8 with what the page makes of the feed."""
    with twin("scheduler-timeline") as context:
        context.eval((LIVE / "live-run.js").read_text(encoding="utf-8"))
        context.eval("var run = TinyLive.create()")
        yield context


def request(ticket: int, **others: Any) -> dict[str, Any]:
    state = {"arrival": 100.0, "num_prompt_tokens": 10, "num_cached_tokens": 0, "num_tokens": 0}
    return {"ticket": ticket, "is_started": True, "outcome": None} | state | others


def schedule_of(live: MiniRacer, events: list[dict[str, Any]], window: float = 5, width: int = 500) -> Any:
    live.eval("run = TinyLive.create()")
    for event in events:
        live.eval(f"TinyLive.add(run, {json.dumps(event)})")
    return live.execute(f"TinyLive.schedule(run, {window}, {width})")


def test_the_schedule_has_the_last_seconds(live: MiniRacer) -> None:
    steps = [
        {"start": 90.0, "end": 91.0, "rows": [[1, 0, 10, True, True]]},
        {"start": 101.0, "end": 102.0, "rows": [[3, 0, 8, True, False], [4, 0, 2, True, True]]},
        {"start": 102.0, "end": 104.0, "rows": [[3, 8, 2, True, True], [4, 2, 1, False, True]]},
    ]
    requests = [request(3), request(4, num_prompt_tokens=2, outcome="length"), request(5, arrival=103.0)]
    found = schedule_of(live, [{"now": 104.0, "steps": steps, "requests": requests}])
    assert found["names"] == ["#3", "#4", "#5"]
    assert found["arrivals"] == [1, 1, 4]
    assert [(call["phase"], call["start"], call["end"]) for call in found["calls"]] == [
        ("prefill", 2, 3),
        ("prefill", 3, 5),
        ("decode", 3, 5),
    ]
    assert [row["id"] for call in found["calls"] for row in call["rows"]] == [0, 1, 0, 1]
    assert [felt["ttft"] for felt in found["felt"]] == [4, 2, None]
    assert found["felt"][1]["gap"] == 2


def test_what_is_drawn_and_kept_has_bounds(live: MiniRacer) -> None:
    def event(number: int) -> dict[str, Any]:
        now = 100.0 + number
        steps = [
            {"start": now + i / 1000, "end": now + (i + 1) / 1000, "rows": [[7, 10 + i, 1, False, True]]}
            for i in range(1000)
        ]
        ended = [request(100 * number + i, outcome="stop") for i in range(20)]
        return {"now": now + 1, "steps": steps, "requests": [*ended, request(7)]}

    found = schedule_of(live, [event(number) for number in range(60)], window=30, width=300)
    dots = [row for call in found["calls"] if call["phase"] == "decode" for row in call["rows"]]
    assert 45 <= len(dots) <= 300 / 4 + 1
    assert live.execute("run.steps.length") <= 20_000
    assert live.execute("run.requests.size") <= 32 * 20
    assert found["felt"][found["names"].index("#7")]["gap"] == pytest.approx(0.001)


def test_a_request_that_ended_unseen_is_dropped(live: MiniRacer) -> None:
    events = [{"now": 100.0 + i, "steps": [], "requests": [request(i)]} for i in range(2)]
    assert schedule_of(live, events)["names"] == ["#1"]


def test_the_timeline_is_that_of_the_book() -> None:
    from http_server.page import BOOK, FILES

    assert BOOK / "viz" == VIZ
    assert all((BOOK / path).is_file() for path, _ in FILES.values())
    page = (LIVE / "index.html").read_text(encoding="utf-8")
    assert all(f"/page/{name}" in page for name in FILES if name)
