"""Files of a checkpoint: found, complete and readable, or one sentence that says which is not."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from .weight_files import check_complete, is_count, weight_files

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

CHECKPOINT_FILES = ["*.json", "model*.safetensors", "*.jinja", "*.txt", "*.model"]
EMBEDDING_TENSORS = ("embed_tokens.weight", "embed_tokens.scales")
LONGEST_REASON = 200  # characters of another library's error


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


def find_checkpoint(path_or_repo: str | Path, check: Callable[[Mapping[str, Any]], object]) -> Path:
    """The folder itself, or the hub repository of that name, downloaded.

    Args:
        path_or_repo: a folder, or a repository's name.
        check: refuses the contents of a config.json, before a repository's weights are downloaded.

    Raises:
        ValueError: there is no such checkpoint, or it is refused.
    """
    path = Path(path_or_repo).expanduser()
    if path.is_dir():
        return path
    if str(path_or_repo).count("/") != 1 or path.is_absolute():
        raise ValueError(
            f"there is no checkpoint folder {str(path_or_repo)!r}: give a folder with a config.json"
        )
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        check(read_json(Path(hf_hub_download(str(path_or_repo), "config.json"))))
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
    """The tensors of a checkpoint's `weight_files`, under the usual names.

    Raises:
        ValueError: a file is missing or cut short, or lacks a tensor the index promises.
    """
    weight_map = read_weight_map(path)
    tensors: dict[str, mx.array] = {}
    for name in weight_files(path, weight_map.values()):
        check_complete(path / name)
        with damage_refused(f"{path / name}"):
            shard = mx.load(str(path / name))
        assert isinstance(shard, dict)  # what a safetensors file gives
        tensors.update(shard)
    for tensor, name in weight_map.items():
        if tensor not in tensors:
            raise ValueError(f"{path / name} lacks the tensor {tensor!r} that the index promises")
    return with_usual_names(tensors)


def with_usual_names(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """The tensors of a decoder under names that begin with `model.`, and its head as `lm_head`.

    In the file of an embedding model, the names begin with nothing. In that of a vision model, they begin
    with `model.language_model.` or `language_model.model.`. The name of the embedding says which it is.
    """
    end = "embed_tokens.weight"
    prefixes = [name.removesuffix(end) for name in tensors if name == end or name.endswith(f".{end}")]
    if len(prefixes) != 1 or prefixes == ["model."]:
        return tensors
    (prefix,) = prefixes
    renamed = {}
    for name, tensor in tensors.items():
        before, head, rest = name.rpartition("lm_head.")
        if head and (before == "" or prefix.startswith(before)):
            name = head + rest
        elif name.startswith(prefix):
            name = f"model.{name.removeprefix(prefix)}"
        renamed[name] = tensor
    return renamed


def stored_dtype(path: Path) -> mx.Dtype | None:
    """The type in which a model computes, that of the embedding or of its scales; None if no file tells."""
    try:
        tensors = read_tensors(path)
    except ValueError:  # loading the model will say what is wrong
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
