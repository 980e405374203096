"""The page at /: its files, and the headers that keep it from asking anyone else for anything."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from .errors import ApiError

BOOK = Path(__file__).parents[1] / "book"
FILES = {
    "": ("live/index.html", "text/html"),
    "live.css": ("live/live.css", "text/css"),
    "live.js": ("live/live.js", "text/javascript"),
    "live-run.js": ("live/live-run.js", "text/javascript"),
    "viz.css": ("viz/viz.css", "text/css"),
    "common.js": ("viz/common.js", "text/javascript"),
    "scheduler-timeline.js": ("viz/twins/scheduler-timeline.js", "text/javascript"),
    "scheduler-timeline-drawing.js": ("viz/parts/scheduler-timeline-drawing.js", "text/javascript"),
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def page(http: Request) -> Response:
    """The page, or one of its files. The timeline's files are those of the book's figures.

    Raises:
        ApiError: the page has no such file.
    """
    name = http.path_params.get("name", "")
    if name not in FILES:
        raise ApiError(404, f"the page has no file {name!r}", code="not_found")
    path, media_type = FILES[name]
    return Response((BOOK / path).read_bytes(), media_type=media_type, headers=HEADERS)
