"""Load a model and its tokenizer by a checkpoint's name, with the fastest operations that work here."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx

from kernel_runtime.checkpoint import find_checkpoint, load_tokenizer, read_json, stored_dtype
from kernel_runtime.launch import has_bfloat16
from kernel_runtime.native import is_invariant, notice
from tiny_llm.model.embedding import Embedding
from tiny_llm.model.operations import Operations
from tiny_llm.model.qwen3 import Qwen3Model
from tiny_llm.model.ranks import Ranks
from tiny_llm.model.registry import check_loadable, find_model_type, load_checkpoint
from tiny_llm.ops.basics import one_by_one

from .accelerate import best, best_operations
from .engine_contests import grouped_matmuls
from .race_inputs import is_on_gpu, usual_dtype

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


def load(path_or_repo: str | Path, dtype: mx.Dtype | None = None) -> tuple[Qwen3Model, "TokenizerWrapper"]:
    """Load a model and its tokenizer.

    Packed weights stay packed where the kernels work, and are expanded where they do not.

    Args:
        path_or_repo: a checkpoint folder, or the name of a hub repository.
        dtype: type to compute in; that of the checkpoint unless given, but float16 in place of bfloat16 on a
            GPU that does not have it.

    Raises:
        ValueError: the checkpoint `path_or_repo` is not there, not supported (as for `load_model`), or not
            complete; shows the `name` of the file.
    """
    path = find_checkpoint(path_or_repo, check_loadable)
    model = load_checkpoint(path, *parts_for(path, dtype))
    if is_invariant() and isinstance(model.embedding, Embedding):
        model.head = one_by_one(model.head)
    return model, load_tokenizer(path)


def parts_for(path: Path, dtype: mx.Dtype | None) -> tuple[mx.Dtype | None, Operations]:
    """The type to load a checkpoint in, None for its own, and what a model of that type is made of."""
    kind = dtype or stored_dtype(path)
    if dtype is None and kind is not None and kind == mx.bfloat16 and is_on_gpu() and not has_bfloat16():
        notice("this GPU does not compute in bfloat16, so the model computes in float16")
        dtype = kind = mx.float16
    operations = best_operations(kind)
    if find_model_type(read_json(path / "config.json")).has_experts:
        operations = replace(operations, grouped_matmul=best(grouped_matmuls, kind or usual_dtype()))
    return dtype, operations


def load_part(path: Path, ranks: Ranks, dtype: mx.Dtype | None = None) -> Qwen3Model:
    """Load one rank's part of a model, dense or with experts (day 4.3).

    Args:
        path: a checkpoint folder.
        ranks: all of them load, each its part.
        dtype: as for `load`.

    Raises:
        ValueError: as for `load` and `shard_config`.
    """
    check_loadable(read_json(path / "config.json"))
    return load_checkpoint(path, *parts_for(path, dtype), ranks)
