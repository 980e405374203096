"""What a model is made of: for each operation the course's kernel, MLX's own operation or the plain version.

`TINY_LLM_KERNELS` chooses (`kernel_runtime.native.kernels_mode`); by default the fastest wins. Each candidate
is tried on a small input first. A kernel that is not written yet, does not compile or differs from MLX's own
operation is left out, with a line on standard error, so a model always computes the right thing.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from kernel_runtime.contest import Contest, Part
from kernel_runtime.native import is_invariant, kernels_mode
from kernel_runtime.race import Table, choose, race_table
from tiny_llm import kernels
from tiny_llm.engine.batch_sampler import sample_batch
from tiny_llm.engine.sampling_batch import BatchSampler
from tiny_llm.model.engine_operations import EngineOperations
from tiny_llm.model.operations import PLAIN_OPERATIONS, Operations

from . import attention_contests, contests, engine_contests
from .fused_parts import FusedRope, fused_heads
from .integer_matmul import fast_projection
from .mlx_parts import MlxEmbedding
from .race_inputs import is_on_gpu, usual_dtype


def best_operations(dtype: mx.Dtype | None = None) -> Operations:
    """What TINY_LLM_KERNELS asks for, as far as it works on this machine's default device.

    Args:
        dtype: the type that the model computes in; the usual one of the device unless given.
    """
    return _operations(dtype or usual_dtype(), *_setting())


@cache
def _operations(dtype: mx.Dtype, *setting: object) -> Operations:
    table = own_table()
    norm, rope = choose(contests.norms(dtype), table), choose(contests.ropes(dtype), table)
    attention = choose(attention_contests.attentions(dtype), table)
    matmul = choose(contests.matmuls(dtype), table)
    mlp = choose(contests.mlps(matmul, dtype), table)
    is_plain = kernels_mode() == "off" or not is_on_gpu()  # a CPU computes either in as many operations
    embedding = PLAIN_OPERATIONS.embedding if is_plain else MlxEmbedding
    parts = Operations(
        norm,
        rope,
        mlp,
        attention=attention,
        matmul=matmul,
        projection=fast_projection,
        embedding=embedding,
        **vars(engine_operations(dtype)),
    )
    heads = choose(attention_contests.attention_layers(parts, dtype), table)
    # The course's heads are rotated from the tables of the course's rotation.
    return replace(parts, project_heads=heads, rope=FusedRope if heads is fused_heads else rope)


def engine_operations(dtype: mx.Dtype | None = None) -> EngineOperations:
    """What an engine computes its steps with. Nothing is chosen before a runner asks.

    Args:
        dtype: as for `best_operations`.
    """
    return EngineOperations(
        paged_attention=lambda: best(attention_contests.paged_attentions, dtype or usual_dtype()),
        quantized_attention=lambda: best(engine_contests.quantized_attentions, dtype or usual_dtype()),
        store_rows=lambda: best(engine_contests.row_writers, dtype or usual_dtype()),
        quantize_blocks=lambda: best(engine_contests.block_quantizers, dtype or usual_dtype()),
        sampler=best_sampler,
        mask_rows=lambda: best(engine_contests.row_masks),
    )


def best_sampler() -> BatchSampler:
    """The sampler of single rows until `sample_batch` is right, and whatever is faster from then on."""
    in_arrays = best(engine_contests.batch_samplers)
    return best(engine_contests.row_samplers) if in_arrays is sample_batch else in_arrays


def best(contest_of: Callable[..., Contest[Part]], *dtype: mx.Dtype) -> Part:
    """The part that a model or an engine uses for an operation, as far as it works on the default device.

    Args:
        contest_of: makes the contest.
        dtype: what it is made for; nothing if it is the same for all types.
    """
    part: Part = _chosen(contest_of, dtype, *_setting())
    return part


@cache
def _chosen(contest_of: Callable[..., Contest[Any]], dtype: tuple[mx.Dtype, ...], *setting: object) -> Any:
    return choose(contest_of(*dtype), own_table())


def _setting() -> tuple[str, str, bool]:
    """What a choice depends on, besides the package: another device has other parts."""
    return str(mx.default_device()), kernels_mode(), is_invariant()


def own_table() -> Table:
    """The results of this package's races on this machine."""
    return race_table(Path(kernels.__file__).parent, Path(__file__).parent)


def all_contests(dtype: mx.Dtype | None = None) -> list[Contest[Any]]:
    """Every operation that races, the larger ones made of the parts that won.

    Args:
        dtype: as for `best_operations`.
    """
    dtype = dtype or usual_dtype()
    operations = best_operations(dtype)
    return [
        contests.norms(dtype),
        contests.ropes(dtype),
        contests.matmuls(dtype),
        attention_contests.attentions(dtype),
        attention_contests.paged_attentions(dtype),
        contests.mlps(operations.matmul, dtype),
        attention_contests.attention_layers(operations, dtype),
    ]
