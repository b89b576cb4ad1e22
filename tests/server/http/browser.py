"""A browser for tests of pages: Chromium of this machine, driven by playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
VARIABLE = "OMSERVE_TEST_BROWSER"


def find_browser() -> str:
    """The browser's path; skips the test with the reason and the remedy when there is none."""
    given = os.environ.get(VARIABLE)
    found = given or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(
            f"the page was NOT tested, as there is no browser: none of {', '.join(NAMES)} is in "
            f"PATH; `apt-get install chromium`, or set {VARIABLE} to the path of one"
        )
    return found


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless browser; its own sandbox is off, since containers and root have none."""
    path = find_browser()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Browser, url: str, width: int, scheme: str = "light") -> Iterator[Page]:
    """A page of a new session; whatever its console complains of fails the test."""
    complaints: list[str] = []
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    page.goto(url)
    yield page
    context.close()
    # The browser itself logs each refused request, which a test may want.
    assert [text for text in complaints if "Failed to load resource" not in text] == []
