"""The file of a block: its keys and values in all layers, in safetensors' format, with a checksum."""

import json
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

NUM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4}
"""Bytes of a number, by safetensors' names of types."""
LENGTH = 8
"""Bytes of the number that a file begins with: the length of the header."""
CHECKSUM = "crc32"


class Packed(NamedTuple):
    """An array as bytes, with safetensors' name of its type."""

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


Block = Mapping[str, Packed]
"""The arrays of a block, by name."""


def checksum(block: Block) -> str:
    """The CRC of everything in a block. It covers types and shapes too."""
    value = 0
    for name, (dtype, shape, data) in block.items():
        value = zlib.crc32(f"{name} {dtype} {shape}".encode(), value)
        value = zlib.crc32(data.data, value)
    return str(value)


def write_block(path: Path, block: Block) -> int:
    """Write the file of a block, and return its length."""
    header: dict[str, object] = {"__metadata__": {CHECKSUM: checksum(block)}}
    start = 0
    for name, (dtype, shape, data) in block.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, start + data.size)}
        start += data.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % LENGTH)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(LENGTH, "little") + text)
        for each in block.values():
            file.write(each.data.data)
        return file.tell()


def read_block(path: Path) -> tuple[Block, int]:
    """Read the file of a block. Return its arrays and its length.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: the file is not complete, or is damaged.
    """
    content = np.fromfile(path, np.uint8)
    try:
        length = int.from_bytes(content[:LENGTH].tobytes(), "little")
        header = json.loads(content[LENGTH : LENGTH + length].tobytes())
        expected = header.pop("__metadata__")[CHECKSUM]
        numbers = content[LENGTH + length :]
        block = {name: packed(entry, numbers) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} has no readable header") from error
    if checksum(block) != expected:
        raise ValueError(f"{path} is damaged")
    return block, content.size


def packed(entry: Mapping[str, Any], numbers: npt.NDArray[np.uint8]) -> Packed:
    """Take an array out of a file, by its entry in the header.

    Raises:
        ValueError, TypeError, KeyError: the entry doesn't describe an array of this file.
    """
    start, end = entry["data_offsets"]
    dtype, shape, data = entry["dtype"], tuple(entry["shape"]), numbers[start:end]
    if data.size != prod(shape) * NUM_BYTES[dtype]:
        raise ValueError("the array is not complete")
    return Packed(dtype, shape, data)
