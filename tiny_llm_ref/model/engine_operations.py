"""The operations that an engine needs besides the model's own parts."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from kernel_runtime.paged_check import PagedAttention, QuantizedPagedAttention

from ..ops.paged_attention import paged_attention_simple
from ..ops.quantized_paged_attention import quantized_paged_attention_simple
from ..ops.writing import QuantizeBlocks, StoreRows, quantize_blocks_simple, store_rows_simple

MaskRows = Callable[[mx.array, mx.array, mx.array], mx.array]
"""Logits [B, V], numbers of rows [R] and their masks [R, W] -> logits [B, V], without evaluating anything."""


@dataclass(frozen=True, kw_only=True)
class EngineOperations:
    """The operations of an engine's steps. By default, each is the plain version.

    Each field is a function without arguments that returns the operation, so nothing is compiled or compared
    before a runner needs it.

    Args:
        paged_attention: attention to blocks (day 3.3).
        quantized_attention: attention to quantized blocks (day 4.1).
        store_rows: writes rows of a pool in place (day 3.2).
        quantize_blocks: quantizes full blocks in place (day 4.1).
        sampler: samples all rows of a step, as `BatchSampler` says; None samples one row at a time.
        mask_rows: masks the rows of requests with a grammar (day 3.8); None uses `mask_rows_simple`.
    """

    paged_attention: Callable[[], PagedAttention] = lambda: paged_attention_simple
    quantized_attention: Callable[[], QuantizedPagedAttention] = lambda: quantized_paged_attention_simple
    store_rows: Callable[[], StoreRows] = lambda: store_rows_simple
    quantize_blocks: Callable[[], QuantizeBlocks] = lambda: quantize_blocks_simple
    sampler: Callable[[], Callable[..., mx.array]] | None = None
    mask_rows: Callable[[], MaskRows] | None = None
