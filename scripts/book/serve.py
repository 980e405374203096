"""Serve the built book on this machine, and build it again when a source of it changes."""

import functools
import http.server
import threading
from collections.abc import Callable
from pathlib import Path

from watchfiles import watch

from scripts.book.build import Result, build
from scripts.book.folders import Folders
from scripts.book.outputs import Outputs


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files of the book, without a line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def end_headers(self) -> None:
        """Let the browser ask for every page again."""
        self.send_header("Cache-Control", "no-store")
        super().end_headers()


def serve(folders: Folders, port: int, is_partial: bool, report: Callable[[Result], None]) -> None:
    """Build, serve until Ctrl-C, build again when a source changes; pages are shown, then checked.

    Raises:
        ValueError: the port is taken.
    """
    handler = functools.partial(Handler, directory=str(folders.build))
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise ValueError(
            f"cannot serve at port {port}, {error.strerror}: choose another with --port"
        ) from None
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def build_again() -> None:
        report(build(Outputs(folders), is_partial, ready=lambda: print(ready, flush=True)))

    ready = f"The book is at http://127.0.0.1:{port} and is built again when a file changes; Ctrl-C ends it."
    build_again()
    for _ in watch(folders.book, watch_filter=lambda _, path: is_source(folders, path)):
        build_again()


def is_source(folders: Folders, path: str) -> bool:
    """Whether a file is read by the build and not made by it."""
    made = (folders.build, folders.cache)
    return not any(Path(path).is_relative_to(folder) for folder in made)
