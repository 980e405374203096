"""What a model is made of: for each operation the course's kernel, MLX's own operation or the plain version.

`TINY_LLM_KERNELS` chooses (`kernel_runtime.native.kernels_mode`); by default the fastest wins. Each candidate
is tried on a small input first. A kernel that is not written yet, does not compile or differs from MLX's own
operation is left out, with a line on standard error, so a model always computes the right thing.
"""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from kernel_runtime.contest import Contest
from kernel_runtime.native import is_invariant, kernels_mode
from kernel_runtime.paged_check import PagedAttention
from kernel_runtime.race import Table, choose, race_table

from ..model.engine_operations import EngineOperations
from ..model.operations import PLAIN_OPERATIONS, Operations
from . import attention_contests, contests
from .best_mask import best_mask
from .best_quantized_attention import best_quantized_attention
from .best_sampler import best_sampler
from .fused_parts import FusedRope, fused_attention
from .mlx_parts import MlxEmbedding
from .quantize_blocks import quantize_blocks
from .race_inputs import is_on_gpu, usual_dtype
from .store_rows import store_rows


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
    of_engine = vars(engine_operations(dtype))
    parts = Operations(norm, rope, mlp, attention=attention, matmul=matmul, embedding=embedding, **of_engine)
    layer = choose(attention_contests.attention_layers(parts, dtype), table)
    # The course's layer rotates by itself, from the tables of the course's rotation.
    return replace(parts, attention_layer=layer, rope=FusedRope if layer is fused_attention else rope)


def best_paged_attention(dtype: mx.Dtype | None = None) -> PagedAttention:
    """Attention to blocks as TINY_LLM_KERNELS asks for it, as far as it works on the default device.

    Args:
        dtype: as for `best_operations`.
    """
    return _paged_attention(dtype or usual_dtype(), *_setting())


@cache
def _paged_attention(dtype: mx.Dtype, *setting: object) -> PagedAttention:
    return choose(attention_contests.paged_attentions(dtype), own_table())


def engine_operations(dtype: mx.Dtype | None = None) -> EngineOperations:
    """What an engine computes its steps with. Nothing is chosen before a runner asks.

    Args:
        dtype: as for `best_operations`.
    """
    return EngineOperations(
        paged_attention=partial(best_paged_attention, dtype),
        quantized_attention=partial(best_quantized_attention, dtype),
        store_rows=lambda: store_rows,
        quantize_blocks=lambda: quantize_blocks,
        sampler=best_sampler,
        mask_rows=best_mask,
    )


def _setting() -> tuple[str, str, bool]:
    """What a choice depends on, besides the package: another device has other parts."""
    return str(mx.default_device()), kernels_mode(), is_invariant()


def own_table() -> Table:
    """The results of this package's races on this machine."""
    return race_table(Path(__file__).parent.parent)


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
