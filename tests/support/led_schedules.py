"""Random schedules on an engine that leads other ranks."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import mlx.core as mx

from accelerated.accelerate import engine_operations
from tests.support.ranks import LedEngine
from tests.support.schedules import EngineSchedule, check_engine_law, config_of, loud_tensors, variant_of
from tiny_llm import Engine, MoeConfig, Qwen3Model, shard_config, shard_tensors
from tiny_llm.model.loader import build_mlp, build_model
from tiny_llm.model.moe_loader import flatten_experts
from tiny_llm.model.ranks import Ranks
from tiny_llm.model.sharded_loader import ShardedTensors, build_sharded_moe


def check_law_on_ranks(schedule: EngineSchedule, kind: Callable[..., Engine] = Engine, size: int = 2) -> None:
    """Fail unless every law of the engine holds on so many ranks."""
    head_dim = 8 if schedule.quantized is None else 32
    tensors_of(schedule.is_sparse, head_dim)  # before there are threads
    check_engine_law(schedule, LedEngine(kind, partial(part_of, schedule.is_sparse, head_dim), size))


@cache
def tensors_of(is_sparse: bool, head_dim: int) -> dict[str, mx.array]:
    """Evaluated, so that any thread may use them."""
    tensors = loud_tensors(variant_of(is_sparse, head_dim))
    mx.eval(tensors)
    return tensors


def part_of(is_sparse: bool, head_dim: int, ranks: Ranks) -> Qwen3Model:
    """A rank's part of the model of the schedules, of plain parts."""
    variant = variant_of(is_sparse, head_dim)
    part = replace(variant, changes=shard_config(variant.config, ranks.size))
    own = flatten_experts(shard_tensors(tensors_of(is_sparse, head_dim), ranks.rank, ranks.size))
    moe = partial(build_sharded_moe, MoeConfig.from_dict(part.config)) if is_sparse else build_mlp
    model = build_model(config_of(part), ShardedTensors(own, None, None, ranks=ranks), moe)
    model.operations = engine_operations(mx.float32)
    return model
