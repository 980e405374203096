"""A checkpoint from the model hub."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import httpx2
import typer

from scripts.checkpoints.files import hub_cache_dir
from scripts.errors import leave

HUB_FILES = ["*.json", "model*.safetensors", "tokenizer*", "*.txt", "*.jinja"]
HUB_TIMEOUT = 15.0  # seconds


def stop() -> NoReturn:
    """Say that the user stopped the command and end the process, other threads included."""
    typer.echo("\nstopped: the same command again fetches what is missing", err=True)
    leave()


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
    """Let the hub's client fill our cache with a model's files, its config.json first.

    Raises:
        ValueError: the hub cannot be reached, or does not hand the model out; or the model is not supported.
    """
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    # These import MLX, which the rest of this command does without.
    from kernel_runtime.checkpoint import read_json
    from tiny_llm.model.registry import check_loadable

    try:
        # snapshot_download asks this too, but would wait for ever for a hub that never answers.
        commit = HfApi().model_info(name, timeout=HUB_TIMEOUT).sha
        cache = hub_cache_dir()
        config = hf_hub_download(name, "config.json", revision=commit, cache_dir=cache, force_download=force)
        check_loadable(read_json(Path(config)))
        snapshot_download(name, cache_dir=cache, allow_patterns=HUB_FILES, force_download=force)
    except GatedRepoError as error:
        raise ValueError(
            "gated: accept its terms on the hub's page, then log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ValueError("the hub has no such model, or it is private: check the spelling") from error
    except EntryNotFoundError as error:
        raise ValueError(
            "the hub's model has no config.json, so it is none that mlx-lm could read"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, httpx2.TransportError) as error:
        raise ValueError(
            "the hub cannot be reached: check the network (and HF_HUB_OFFLINE), or use `get-model smollm2`"
        ) from error
    except HfHubHTTPError as error:
        raise ValueError(f"the hub answered {error.response.status_code}: try again later") from error
