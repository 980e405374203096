"""Load a model and its tokenizer by a checkpoint's name, with the fastest operations that work here."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from kernel_runtime.checkpoint import find_checkpoint, load_tokenizer, read_json, read_tensors, stored_dtype
from kernel_runtime.launch import has_bfloat16
from kernel_runtime.native import is_invariant, notice

from ..model.config import ModelConfig
from ..model.embedding import Embedding
from ..model.loader import MakeMlp, Quantization, build_mlp, build_model, load_model
from ..model.moe_loader import MODEL_TYPE, MoeConfig, flatten_experts, load_moe_model
from ..model.operations import Operations
from ..model.qwen3 import Qwen3Model
from ..model.ranks import Ranks
from ..model.sharded_loader import ShardedTensors, build_sharded_moe
from ..model.sharding import shard_config, shard_tensors
from ..ops.basics import one_by_one
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
    has_experts = read_json(path / "config.json").get("model_type") == MODEL_TYPE
    dtype, operations = parts_for(path, dtype, has_experts)
    model = (load_moe_model if has_experts else load_model)(path, dtype, operations)
    if is_invariant() and isinstance(model.embedding, Embedding):
        model.head = one_by_one(model.head)
    model.operations = operations
    return model, load_tokenizer(path)


def check_loadable(config: Mapping[str, Any]) -> None:
    """Refuse the contents of a config.json of a model that `load` doesn't support.

    Raises:
        ValueError: as for `ModelConfig` and `MoeConfig`.
    """
    if config.get("model_type") == MODEL_TYPE:
        MoeConfig.from_dict(config)
        config = {**config, "model_type": "qwen3"}
    ModelConfig.from_dict(config)


def parts_for(path: Path, dtype: mx.Dtype | None, has_experts: bool) -> tuple[mx.Dtype | None, Operations]:
    """The type to load a checkpoint in, None for its own, and what a model of that type is made of."""
    kind = dtype or stored_dtype(path)
    if dtype is None and kind is not None and kind == mx.bfloat16 and is_on_gpu() and not has_bfloat16():
        notice("this GPU does not compute in bfloat16, so the model computes in float16")
        dtype = kind = mx.float16
    operations = best_operations(kind)
    if has_experts:
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
    whole = read_json(path / "config.json")
    check_loadable(whole)
    config_dict = shard_config(whole, ranks.size)
    dtype, operations = parts_for(path, dtype, has_experts=True)
    tensors = ShardedTensors(
        flatten_experts(shard_tensors(read_tensors(path), ranks.rank, ranks.size)),
        Quantization.from_config(config_dict),
        dtype,
        operations,
        ranks=ranks,
    )
    make_mlp: MakeMlp = build_mlp
    if config_dict.get("model_type") == MODEL_TYPE:
        make_mlp = partial(build_sharded_moe, MoeConfig.from_dict(config_dict))
        config_dict["model_type"] = "qwen3"
    model = build_model(ModelConfig.from_dict(config_dict), tensors, make_mlp)
    tensors.check_all_used(model.head == model.embedding.as_linear)
    model.operations = operations
    return model
