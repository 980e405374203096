"""Which files of a checkpoint folder hold its weights, and whether they are whole."""

import json
import re
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

SINGLE_FILE = "model.safetensors"
SHARD = re.compile(r"model-\d{5}-of-(\d{5})\.safetensors")
BYTES = {
    **dict.fromkeys(("BOOL", "I8", "U8"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64"), 8),
}
"""Of an entry, by the type that a safetensors file names."""
OTHER_TYPES = re.compile(r"C64|F64|F[468](_\w+)?")
"""Types that the format has and MLX reads as something else, or not at all."""


def weight_files(path: Path, named: Iterable[str] = ()) -> list[str]:
    """The names of the files with weights, in order. Some of them may not be there.

    They are those that an index names. Without an index, it is `model.safetensors`, or else all of
    `model*.safetensors`, and every shard of as many as the name of the first one says.

    Args:
        path: the folder.
        named: the files that its index names.
    """
    if files := sorted(set(named)):
        return files
    found = sorted(file.name for file in path.glob("model*.safetensors"))
    if SINGLE_FILE in found or not found:
        return [SINGLE_FILE]
    shard = SHARD.fullmatch(found[0])
    num_shards = int(shard[1]) if shard else 0
    shards = [f"model-{i + 1:05}-of-{num_shards:05}.safetensors" for i in range(num_shards)]
    return sorted({*found, *shards})


def check_there(file: Path) -> None:
    """Raise ValueError if a file with weights is missing; say what the folder has instead."""
    if file.is_file():
        return
    folder, missing = file.parent, f"there is no {file.name} in {file.parent}"
    if file.name != SINGLE_FILE and (folder / SINGLE_FILE).is_file():
        raise ValueError(f"{missing}, but a {SINGLE_FILE}: delete {SINGLE_FILE}.index.json, which is stale")
    kinds = ("*.safetensors", "*.bin", "*.gguf", "*.npz", "*.pth")
    others = sorted(each.name for kind in kinds for each in folder.glob(kind))
    if file.name == SINGLE_FILE and others:
        raise ValueError(f"{missing}, but {others[0]}: choose a version with model*.safetensors files")
    raise ValueError(f"{missing}: download the checkpoint again")


def check_complete(file: Path) -> None:
    """Compare a safetensors file with the sizes in its header; MLX itself would read past the end.

    Raises:
        ValueError: the file is not there, cut short, or none that MLX could read.
    """
    check_there(file)
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
        dtype = entry.get("dtype") if isinstance(entry, dict) else None
        if isinstance(dtype, str) and OTHER_TYPES.fullmatch(dtype):
            raise ValueError(
                f"the tensor {name!r} of {file} is of type {dtype}, which is not supported: use a version "
                "of the model in BF16, F16 or F32, or one that mlx-lm quantized"
            )
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


def is_count(value: Any) -> bool:
    """Whether a value of a JSON file is a whole number from 0 on that an array of MLX could hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
