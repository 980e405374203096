"""What the browser tests share."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from scripts.book.browser import open_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window, with one context for all pages.

    For a module, not for the session: it keeps an event loop running, in which V8 refuses a timeout.
    """
    with open_browser() as browser:
        browser.new_context()
        yield browser


@pytest.fixture(autouse=True)
def _own_pages_are_closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Close what a test opened, so that it does not go on drawing beside the next one."""
    if "browser" not in request.fixturenames:
        yield
        return
    browser: Browser = request.getfixturevalue("browser")
    before = {page for context in browser.contexts for page in context.pages}
    yield
    for context in browser.contexts:
        for page in context.pages:
            if page not in before:
                page.close()
