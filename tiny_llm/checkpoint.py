"""Files of a checkpoint: found, complete and readable, or one sentence that says which is not."""

import json
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx

CHECKPOINT_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


def read_eos_token_ids(path: Path) -> list[int]:
    """End-of-text ids of generation_config.json, else of config.json; there may be none, one or several."""
    for name in ("generation_config.json", "config.json"):
        eos = read_json(path / name).get("eos_token_id") if (path / name).exists() else None
        if eos is not None:
            return eos if isinstance(eos, list) else [eos]
    return []


def find_checkpoint(path_or_repo: str | Path) -> Path:
    """The folder itself, or the hub repository of that name, downloaded."""
    path = Path(path_or_repo).expanduser()
    if path.is_dir():
        return path
    if str(path_or_repo).count("/") != 1 or path.is_absolute():
        raise ValueError(
            f"there is no checkpoint folder {str(path_or_repo)!r}: give a folder with a config.json"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(path_or_repo), allow_patterns=CHECKPOINT_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(
            f"there is no folder {str(path_or_repo)!r}, and the hub did not give a repository of that name: "
            "check the name and the network"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; ValueError if the file is missing or holds anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no {path.name} in {path.parent}: it is not a whole checkpoint") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content


def read_tensors(path: Path) -> dict[str, mx.array]:
    """The tensors of model.safetensors, or of all shards that the index names.

    Raises:
        ValueError: a file is missing or cut short, or lacks a tensor the index promises.
    """
    index_file = path / "model.safetensors.index.json"
    weight_map: dict[str, str] = read_json(index_file).get("weight_map", {}) if index_file.exists() else {}
    files = sorted(set(weight_map.values())) or ["model.safetensors"]
    tensors: dict[str, mx.array] = {}
    for name in files:
        check_complete(path / name)
        shard = mx.load(str(path / name))
        assert isinstance(shard, dict)  # what a safetensors file gives
        tensors.update(shard)
    for tensor, name in weight_map.items():
        if tensor not in tensors:
            raise ValueError(f"{path / name} lacks the tensor {tensor!r} that the index promises")
    return tensors


def check_complete(file: Path) -> None:
    """Compare a safetensors file with the sizes in its header; MLX itself would read past the end."""
    if not file.exists():
        raise ValueError(f"there is no {file.name} in {file.parent}: download the checkpoint again")
    try:
        with file.open("rb") as stream:
            (header_size,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(header_size))
        end = max(
            (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0
        )
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError):
        raise ValueError(f"{file} is not a safetensors file: download the checkpoint again") from None
    if file.stat().st_size != 8 + header_size + end:
        raise ValueError(
            f"{file} has {file.stat().st_size} bytes and its header says {8 + header_size + end}: "
            "download it again"
        )
