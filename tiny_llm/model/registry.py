"""The model types that can be loaded: one row each, which says how its checkpoints are read."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from kernel_runtime.checkpoint import read_json, read_tensors

from .config import ConfigDict, ModelConfig
from .config_check import shortened
from .loader import MakeMlp, Quantization, Tensors, build_mlp, build_model, load_model
from .moe_loader import MoeConfig, build_moe, flatten_experts, load_moe_model
from .operations import PLAIN_OPERATIONS, Operations
from .qwen3 import Qwen3Model
from .ranks import Ranks
from .sharded_loader import ShardedTensors, build_sharded_moe
from .sharding import shard_config, shard_tensors

Arrays = dict[str, mx.array]
Mlp = Callable[[mx.array], mx.array]


@dataclass(frozen=True)
class ModelType:
    """How checkpoints of one `model_type` are read. The defaults are those of a Llama.

    Args:
        read_config: reads config.json, and refuses what the model doesn't compute.
        rename: gives the tensors the names and shapes that `build_model` asks for, from the checkpoint's own
            and config.json. A fused projection is split here.
        read_experts: reads the sizes of the mixtures in config.json; None if there are none.
        make_mixture: builds a block's mixture, as `build_moe` does.
        make_part_of_mixture: the same for one rank, as `build_sharded_moe` does.
        load: loads a whole model, if a day of the course asks for that. If None, the above do.
    """

    read_config: Callable[[ConfigDict], ModelConfig] = ModelConfig.from_dict
    rename: Callable[[Arrays, ConfigDict], Arrays] = lambda arrays, _: arrays
    read_experts: Callable[[ConfigDict], MoeConfig] | None = None
    make_mixture: Callable[[MoeConfig, ModelConfig, Tensors, str], Mlp] = build_moe
    make_part_of_mixture: Callable[[MoeConfig, ModelConfig, ShardedTensors, str], Mlp] = build_sharded_moe
    load: Callable[[Path, mx.Dtype | None, Operations], Qwen3Model] | None = None

    @property
    def has_experts(self) -> bool:
        """Whether its blocks have mixtures of experts."""
        return self.read_experts is not None


def read_as(model_type: str, config: ConfigDict) -> ModelConfig:
    """Read a config.json as that of another model type, one of those that `ModelConfig` knows."""
    return ModelConfig.from_dict({**config, "model_type": model_type})


MODEL_TYPES = {
    "qwen3": ModelType(load=load_model),
    "qwen2": ModelType(load=load_model),
    "llama": ModelType(load=load_model),
    "mistral": ModelType(load=load_model),
    "qwen3_moe": ModelType(
        read_config=partial(read_as, "qwen3"), read_experts=MoeConfig.from_dict, load=load_moe_model
    ),
}
"""What a new type needs beyond its row is in a file of its own."""


def find_model_type(config: ConfigDict) -> ModelType:
    """The row of a config.json.

    Raises:
        ValueError: there is none for its `model_type`, or no `model_type`.
    """
    name = config.get("model_type")
    if name is None:
        raise ValueError("config.json does not say 'model_type', which this model needs")
    if not isinstance(name, str) or name not in MODEL_TYPES:
        raise ValueError(
            f"model_type {shortened(name)} is not supported: choose a model of type {', '.join(MODEL_TYPES)}"
        )
    return MODEL_TYPES[name]


def check_loadable(config: ConfigDict) -> None:
    """Refuse the contents of a config.json of a model that can't be loaded.

    Raises:
        ValueError: as for `find_model_type`, `ModelConfig` and `MoeConfig`.
    """
    model_type = find_model_type(config)
    if model_type.read_experts is not None:
        model_type.read_experts(config)
    model_type.read_config(config)


def load_checkpoint(
    path: Path,
    dtype: mx.Dtype | None = None,
    operations: Operations = PLAIN_OPERATIONS,
    ranks: Ranks | None = None,
) -> Qwen3Model:
    """Load a model of any type, or one rank's part of it (day 4.3).

    Args:
        path: the checkpoint's folder.
        dtype, operations: as for `load_model`.
        ranks: all of them load, each its part; None to load the whole model.

    Raises:
        ValueError: as for `check_loadable`, `load_model`, `load_moe_model` and `shard_config`.
    """
    whole = read_json(path / "config.json")
    check_loadable(whole)
    model_type = find_model_type(whole)
    if ranks is None and model_type.load is not None:
        model = model_type.load(path, dtype, operations)
    else:
        model = assemble(path, whole, dtype, operations, ranks)
    model.operations = operations
    return model


def assemble(
    path: Path, whole: dict[str, Any], dtype: mx.Dtype | None, operations: Operations, ranks: Ranks | None
) -> Qwen3Model:
    """Do what `load_checkpoint` does, from the parts that the row of `whole`, the config.json, names."""
    model_type = find_model_type(whole)
    config = whole if ranks is None else shard_config(whole, ranks.size)
    arrays = model_type.rename(read_tensors(path), whole)
    if ranks is not None:
        arrays = shard_tensors(arrays, ranks.rank, ranks.size)
    make_mlp: MakeMlp = build_mlp
    if model_type.read_experts is not None:
        arrays = flatten_experts(arrays)
        make_mixture = model_type.make_mixture if ranks is None else model_type.make_part_of_mixture
        make_mlp = partial(make_mixture, model_type.read_experts(config))
    given = arrays, Quantization.from_config(config), dtype, operations
    tensors = Tensors(*given) if ranks is None else ShardedTensors(*given, ranks=ranks)
    model = build_model(model_type.read_config(config), tensors, make_mlp)
    tensors.check_all_used(model.head == model.embedding.as_linear)
    return model
