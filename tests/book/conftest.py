"""What the browser tests share."""

from collections.abc import Iterator

import pytest
from figure_pages import open_browser
from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with open_browser() as browser:
        yield browser
