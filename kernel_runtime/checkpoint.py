"""Files of a checkpoint: found, complete and readable, or one sentence that says which is not."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

CHECKPOINT_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
EMBEDDING_TENSORS = ("embed_tokens.weight", "embed_tokens.scales")
LONGEST_REASON = 200  # characters of another library's error
BYTES = {
    **dict.fromkeys(("BOOL", "I8", "U8"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}
"""Of an entry, by the type that a safetensors file names."""


def read_eos_token_ids(path: Path) -> list[int]:
    """End-of-text ids of generation_config.json, else of config.json; there may be none, one or several.

    Raises:
        ValueError: the file says something else than ids.
    """
    for name in ("generation_config.json", "config.json"):
        eos = read_json(path / name).get("eos_token_id") if (path / name).exists() else None
        if eos is not None:
            ids = eos if isinstance(eos, list) else [eos]
            if not all(is_count(id) for id in ids):
                raise ValueError(f"eos_token_id of {path / name} must be a token id or a list of them")
            return ids
    return []


def load_tokenizer(path: Path) -> "TokenizerWrapper":
    """mlx-lm's tokenizer of a checkpoint folder, with every end-of-text id the checkpoint names.

    Raises:
        ValueError: the tokenizer is missing or cannot be read.
    """
    from mlx_lm.tokenizer_utils import load as load_wrapper  # a second to import: only when needed

    if not any(
        (path / name).exists() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
    ):
        raise ValueError(f"there is no tokenizer in {path}: a checkpoint needs its tokenizer.json")
    eos_token_ids = read_eos_token_ids(path) or None
    with damage_refused(f"the tokenizer in {path}"):
        tokenizer = load_wrapper(path, eos_token_ids=eos_token_ids)
        tokenizer.decode(tokenizer.encode("a"))  # some damage shows only here
    return tokenizer


@contextmanager
def damage_refused(what: str) -> Iterator[None]:
    """Turn whatever another library raises when it reads a damaged file into a ValueError that names it.

    A panic of a library in Rust is no Exception.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{what} cannot be read, {reason[:LONGEST_REASON]}: download it again") from error


def is_count(value: Any) -> bool:
    """Whether a value of a JSON file is a whole number from 0 on that an array of MLX could hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


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
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content


def read_tensors(path: Path) -> dict[str, mx.array]:
    """The tensors of model.safetensors, or of all shards that the index names.

    Raises:
        ValueError: a file is missing or cut short, or lacks a tensor the index promises.
    """
    weight_map = read_weight_map(path)
    files = sorted(set(weight_map.values())) or ["model.safetensors"]
    tensors: dict[str, mx.array] = {}
    for name in files:
        check_complete(path / name)
        with damage_refused(f"{path / name}"):
            shard = mx.load(str(path / name))
        assert isinstance(shard, dict)  # what a safetensors file gives
        tensors.update(shard)
    for tensor, name in weight_map.items():
        if tensor not in tensors:
            raise ValueError(f"{path / name} lacks the tensor {tensor!r} that the index promises")
    return tensors


def stored_dtype(path: Path) -> mx.Dtype | None:
    """The type in which a model computes, that of the embedding or of its scales; None if no file tells."""
    try:
        tensors = read_tensors(path)
    except ValueError:  # whoever loads the model says what is wrong
        return None
    types = [x.dtype for name, x in tensors.items() if name.endswith(EMBEDDING_TENSORS)]
    return next((dtype for dtype in types if mx.issubdtype(dtype, mx.floating)), None)


def read_weight_map(path: Path) -> dict[str, str]:
    """Which file of the folder each tensor is in, by the index; nothing where there is no index."""
    index_file = path / "model.safetensors.index.json"
    weight_map = read_json(index_file).get("weight_map") if index_file.exists() else {}
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) and name == Path(name).name for name in weight_map.values()
    ):
        raise ValueError(
            f"{index_file} has no weight_map that says in which file of the folder each tensor is"
        )
    return weight_map


def check_complete(file: Path) -> None:
    """Compare a safetensors file with the sizes in its header; MLX itself would read past the end.

    Raises:
        ValueError: the file is not there, cut short, or none that MLX could read.
    """
    if not file.is_file():
        raise ValueError(f"there is no {file.name} in {file.parent}: download the checkpoint again")
    num_bytes = file.stat().st_size
    with file.open("rb") as stream:
        header_size = int.from_bytes(stream.read(8), "little")
        content = stream.read(min(header_size, num_bytes))
    try:
        if num_bytes < 8:
            raise ValueError
        entries = read_header(content)
    except (ValueError, RecursionError):
        raise ValueError(f"{file} is not a safetensors file: download the checkpoint again") from None
    for name, entry in entries.items():
        if not is_tensor(entry):
            raise ValueError(f"the header of {file} is damaged at the tensor {name!r}: download it again")
    end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    if num_bytes != 8 + header_size + end:
        raise ValueError(
            f"{file} has {num_bytes} bytes and its header says {8 + header_size + end}: download it again"
        )


def read_header(content: bytes) -> dict[str, Any]:
    """What a safetensors file says of each of its tensors; ValueError if it is not a header."""
    header = json.loads(content.decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def is_tensor(entry: Any) -> bool:
    """Whether a header's entry is a tensor whose shape and type need as many bytes as it has."""
    if not isinstance(entry, dict):
        return False
    shape, offsets, dtype = entry.get("shape"), entry.get("data_offsets"), entry.get("dtype")
    if not isinstance(shape, list) or not isinstance(offsets, list) or not isinstance(dtype, str):
        return False
    if len(offsets) != 2 or not all(isinstance(offset, int) and offset >= 0 for offset in offsets):
        return False
    is_shape = dtype in BYTES and all(is_count(size) for size in shape)
    return is_shape and bool(offsets[1] - offsets[0] == prod(shape) * BYTES[dtype])
