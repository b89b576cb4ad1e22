"""The live page: what it is made of, who may read its events, and what a browser shows of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from omruntime.settings import EngineSettings
from server.http.ui import PAGE_PATHS
from tests.conftest import CACHE
from tests.server.http.browser import open_browser, open_page
from tests.server.http.serving import TOKENIZER, Serving, serving
from tests.server.key_files import add_key
from tests.server.scripted_engine import one_by_one
from tests.server.terminal.bench.example_page import PAGE as BENCH_PAGE
from tests.server.wire_fakes import FakeServer, settings_of

PAGE = resources.files("server.http") / "page"
FILES = sorted(file.name for file in PAGE.iterdir())
# Screenshots of the latest run, to be looked at.
SHOTS = CACHE / "screenshots"


def says_abc(_request: Request) -> list[TokenDelta]:
    return one_by_one([*TOKENIZER.encode_text("abc"), 2], FinishReason.STOP)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(says_abc) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def test_every_file_is_served_and_nothing_else(server: Serving) -> None:
    served = {"index.html"} | {path.rpartition("/")[2] for path in PAGE_PATHS[1:]}
    assert served == set(FILES)
    for path in PAGE_PATHS:
        reply = httpx.get(f"{server.url}{path}")
        assert reply.status_code == 200
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert httpx.get(f"{server.url}/ui/../app.py").status_code == 404
    assert httpx.get(f"{server.url}/ui/index.html").status_code == 404


@pytest.mark.parametrize("name", FILES)
def test_nothing_comes_from_elsewhere_and_nothing_is_inline(name: str) -> None:
    text = (PAGE / name).read_text(encoding="utf-8")
    assert re.findall(r"https?://|//cdn|@import|eval\(|innerHTML", text) == []
    if name.endswith(".html"):
        assert re.findall(r"<style|style=|\son\w+=|<script(?![^>]*src=)", text) == []


def test_the_events_are_watch_loads(server: Serving) -> None:
    with httpx.stream("GET", f"{server.url}/ui/events?interval_s=0.25") as reply:
        lines = (line for line in reply.iter_lines() if line)
        first, second = (json.loads(next(lines).removeprefix("data: ")) for _ in range(2))
    assert second["uptime_s"] > first["uptime_s"]
    assert first["state"] == "SERVER_STATE_SERVING"
    assert [answer["request_id"] for answer in first["details"]["answers"]] == ["r1", "r2"]
    refused = httpx.get(f"{server.url}/ui/events?interval_s=0.1")
    assert refused.status_code == 400
    assert "0.25 to 3600" in refused.json()["error"]["message"]


def rows(page: Page, table: str) -> list[str]:
    texts = page.locator(f"#{table} tbody tr").all_inner_texts()
    return [" ".join(text.replace("\N{MULTIPLICATION SIGN}", "by").split()) for text in texts]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (400, "light")])
def test_it_shows_what_the_engine_holds(
    server: Serving, browser: Browser, width: int, scheme: str
) -> None:
    with open_page(browser, f"{server.url}/ui", width, scheme) as page:
        expect(page.locator("#state")).to_have_text("serving")
        expect(page.locator("#model")).to_have_text("org/tiny")
        expect(page.locator("#tile-running")).to_have_text("1")
        expect(page.locator("#tile-waiting")).to_have_text("2")
        expect(page.locator("#tile-kv")).to_have_text("25 %")
        expect(page.locator("#answers tbody tr")).to_have_count(2)
        if width == 1280:
            assert rows(page, "answers")[0] == "r1 decode 20 5 16 2 0 500 ms"
            assert rows(page, "buckets") == [
                "decode 4 by 1 2 10 25 % 20 ms",
                "prefill 1 by 16 0 3 17 % 100 ms",
            ]
            # The bar is as long as the figure beside it says.
            bars = page.locator("#buckets .bar i")
            assert [bar.evaluate("b => b.style.width")[:2] for bar in bars.all()] == ["25", "16"]
        legend = page.locator("#blocks-legend").inner_text().split("\n")
        assert [" ".join(item.split()) for item in legend if item.strip()] == [
            "11 empty",
            "1 cached",
            "1 cached, worth keeping",
            "2 held",
            "1 held by several",
        ]
        # Rates need a second event.
        rates = "generated 0, prefilled 0"
        expect(page.locator("#chart-tokens")).to_have_attribute("aria-label", rates)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(20, 20, 19)") == (scheme == "dark")
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / f"ui-{width}-{scheme}.png", full_page=True)


def test_the_chat_box_answers_and_says_how_fast(server: Serving, browser: Browser) -> None:
    with open_page(browser, f"{server.url}/ui", 1280) as page:
        page.fill("#chat-input", "Hello <b>there</b>")
        page.press("#chat-input", "Enter")
        answer = page.locator(".message.assistant")
        expect(answer).to_contain_text("abc")
        expect(answer.locator("small")).to_contain_text("4 tokens in")
        # What somebody types is text, never markup.
        expect(page.locator(".message.user")).to_have_text("Hello <b>there</b>")
        page.fill("#chat-tokens", "100000")
        page.fill("#chat-input", "too many")
        page.press("#chat-input", "Enter")
        expect(page.locator(".message.error small")).to_contain_text("100000")


def test_with_keys_it_asks_for_one_until_it_fits(browser: Browser, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    add_key(keys, "the-key", "red")
    with FakeServer(settings_of(http_port=0, api_keys=keys)) as server:
        assert httpx.get(f"{server.url}/ui", trust_env=False).status_code == 200
        assert httpx.get(f"{server.url}/ui/events", trust_env=False).status_code == 401
        with open_page(browser, f"{server.url}/ui", 1280) as page:
            form = page.locator("#key")
            for key in ("wrong", "the-key"):
                expect(form).to_be_visible()
                expect(page.locator("#state")).to_have_text("not connected")
                page.fill("#key-input", key)
                page.press("#key-input", "Enter")
            expect(page.locator("#state")).to_have_text("serving")
            expect(form).to_be_hidden()
            # Of others' answers nothing.
            assert [row.split()[0] for row in rows(page, "answers")] == ["r1"]
            expect(page.locator("#answers-count")).to_have_text("1 of 3")


def test_it_says_when_the_engine_is_silent(server: Serving, browser: Browser) -> None:
    """As in a step that hangs: what is shown is old by then."""
    with httpx.stream("GET", f"{server.url}/ui/events") as reply:
        line = next(line for line in reply.iter_lines() if line)
    event = json.loads(line.removeprefix("data: "))
    event["details"]["age_s"] = 9.5
    body = f"data: {json.dumps(event)}\n\n"
    with open_page(browser, "about:blank", 1280) as page:
        page.route("**/ui/events", lambda route: route.fulfill(body=body))
        page.goto(f"{server.url}/ui")
        expect(page.locator("#uptime")).to_contain_text("no news of the engine for 9.5 s")


def test_it_says_that_a_simulation_gives_its_times(browser: Browser) -> None:
    simulated = EngineSettings(device="sim:0")
    with (
        serving(says_abc, engine=simulated) as running,
        open_page(browser, f"{running.url}/ui", 1280) as page,
    ):
        expect(page.locator("#state")).to_have_text("serving, a SIMULATION")


def test_it_comes_back_when_the_server_does(browser: Browser) -> None:
    with serving(says_abc) as running, open_page(browser, f"{running.url}/ui", 1280) as page:
        expect(page.locator("#state")).to_have_text("serving")
        page.route("**/ui/events", lambda route: route.fulfill(status=503, body="{}"))
        page.reload()
        expect(page.locator("#state")).to_have_text("not connected")
        expect(page.locator("#notice")).to_contain_text("503")
        page.unroute("**/ui/events")
        expect(page.locator("#state")).to_have_text("serving")
        expect(page.locator("#notice")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_the_load_generator_is_shown_without_a_complaint(
    browser: Browser, tmp_path: Path, scheme: str
) -> None:
    path = tmp_path / "bench.html"
    path.write_text(BENCH_PAGE, encoding="utf-8")
    with open_page(browser, path.as_uri(), 400, scheme) as page:
        assert page.locator("polyline").count() == 5
        is_wider = "document.documentElement.scrollWidth > innerWidth"
        assert not page.evaluate(is_wider), "a telephone shows all of it"
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / f"bench-{scheme}.png", full_page=True)
