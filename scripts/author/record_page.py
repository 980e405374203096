"""Takes the README's pictures of a server's page after one answer, light and dark."""

import base64
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scripts.book.browser import open_browser
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.course import ROOT
from scripts.errors import usage_errors
from scripts.hardware.try_server import PROMPTS, SECONDS, answer, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PICTURES = ROOT / "book" / "pictures"
SIZE, SCALE = {"width": 1200, "height": 680}, 2
QUALITY = 85  # of WebP, in percent
MOST_TOKENS = 60  # of the answer, so that all of the page is seen
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")

Out = Annotated[Path, typer.Option(help="The folder that the pictures are written to.")]


def main(out: Out = PICTURES) -> None:
    """Serve the shipped model, send the message that its page suggests, and take pictures of the answer.

    Example: pdm run author record-page
    """
    with (
        usage_errors(),
        tempfile.TemporaryDirectory() as folder,
        open_browser() as browser,
        served([], Path(folder) / "log") as url,
    ):
        answer(url, SHIPPED_MODEL, {"prompt": PROMPTS[0]})  # the first request waits for kernels
        out.mkdir(parents=True, exist_ok=True)
        for scheme, content in pictures(browser, url):
            file = out / f"page-{scheme}.webp"
            file.write_bytes(content)
            print(f"wrote {file.name}, {len(content) / 1000:.0f} kB")


def pictures(browser: "Browser", url: str) -> Iterator[tuple[Scheme, bytes]]:
    """The page as WebP in each scheme, once the answer is complete."""
    page = browser.new_page()
    page.set_viewport_size(SIZE)
    page.set_default_timeout(1000 * SECONDS)
    page.goto(url)
    page.locator("#about").wait_for()  # then the model is known, and its example is filled in
    page.locator("#most").fill(str(MOST_TOKENS))
    page.locator("#window").select_option("1")  # second, in which the small model writes them
    page.locator("#send").click()
    page.locator("#requests", has_text="ended").wait_for()
    page.locator("#send", has_text="Send").wait_for()
    session = page.context.new_cdp_session(page)  # playwright itself has no WebP
    form = {"format": "webp", "quality": QUALITY, "clip": {"x": 0, "y": 0, "scale": SCALE, **SIZE}}
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        shot = session.send("Page.captureScreenshot", form)
        yield scheme, base64.b64decode(shot["data"])


if __name__ == "__main__":
    typer.run(main)
