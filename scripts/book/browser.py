"""Chromium without a window."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_BROWSER = "needs Chromium: `apt-get install chromium`, or its path in the variable CHROMIUM"
NO_PLAYWRIGHT = "needs playwright: `pdm run setup --group pages`"


@contextmanager
def open_browser() -> "Iterator[Browser]":
    """A browser within the block.

    Raises:
        ValueError: the machine has no Chromium, or the environment no playwright.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        raise ValueError(NO_PLAYWRIGHT) from None
    found = [os.environ.get("CHROMIUM"), *map(shutil.which, BROWSERS)]
    path = next((each for each in found if each), None)
    if path is None:
        raise ValueError(NO_BROWSER)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
