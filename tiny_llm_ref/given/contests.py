"""The operations that race: their candidates, how each is checked, and the shapes on which they are timed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import mlx.core as mx

from kernel_runtime.launch import default_target
from kernel_runtime.native import is_invariant
from kernel_runtime.paged_check import PagedAttention, checked, unchecked
from kernel_runtime.race import CHUNK, Contest, Run, switch
from kernel_runtime.self_check import close_products, sample

from ..kernels.dispatch_attention import dispatch_attention
from ..kernels.dispatch_paged_attention import dispatch_paged_attention
from ..kernels.given.integer_matmul import integer_matmul
from ..kernels.quantized_matmul import quantized_matmul
from ..model.config import ModelConfig
from ..model.given.operations import PLAIN_OPERATIONS, Operations
from ..ops.attention import Attention
from ..ops.basics import Projection, as_projection
from ..ops.paged_attention import paged_attention
from ..ops.positional_encoding import RoPE
from ..ops.quantize import QuantizedMatmul, QuantizedProjection, QuantizedWeights, quantized_matmul_simple
from .fused_parts import FusedNorm, FusedRope, fused_attention, fused_mlp, prepared
from .mlx_parts import MlxNorm, MlxRope, mlx_attention, mlx_matmul, mlx_mlp, mlx_paged_attention


@dataclass(frozen=True)
class Sizes:
    """A layer to time: E, I, H_q, H, D, and S keys in the cache."""

    dim: int
    hidden_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_keys: int
    dtype: mx.Dtype


ON_CPU = Sizes(576, 1536, 9, 3, 64, 512, mx.float32)
ON_GPU = Sizes(2048, 6144, 16, 8, 128, 1024, mx.bfloat16)
EMULATED = Sizes(64, 128, 2, 1, 32, CHUNK, mx.float32)
NUM_WEIGHTS = 4
"""Different weights that are multiplied in turn, as a model's layers are: no cache holds them for long."""
BLOCK_SIZE = 16


def is_on_gpu() -> bool:
    """Whether models compute on a GPU."""
    return mx.default_device() == mx.gpu


def sizes() -> Sizes:
    """What to time on this device: an emulated GPU takes long."""
    if not is_on_gpu():
        return ON_CPU
    return EMULATED if default_target().device == "emulator" else ON_GPU


def normal(*shape: int) -> mx.array:
    """An input of that shape, in the type that models compute in here."""
    x = sample(*shape).astype(sizes().dtype)
    mx.eval(x)
    return x


def num_rows(x: mx.array, *_: object) -> int:
    """How many vectors an array holds."""
    return x.size // max(x.shape[-1], 1)


def switch_makers(makers: Mapping[int, Any], rows_of: Callable[..., int]) -> Any:
    """A maker of parts that call the part for their number of rows."""

    def make(*args: object) -> Any:
        parts = {each: each(*args) for each in makers.values()}
        return switch({rows: parts[each] for rows, each in makers.items()}, rows_of)

    return make


# --- small operations ---------------------------------------------------------------------------------------


def norms() -> Contest[Any]:
    """RMSNorm."""
    x, weight = sample(3, 64), sample(64)

    def start(make: Any, rows: int) -> Run:
        dim = sizes().dim
        return make(dim, normal(dim), 1e-5), normal(rows, dim)

    mlx = FusedNorm if is_on_gpu() else MlxNorm  # where the course's is MLX's own
    return Contest(
        name="norm",
        kernel="rms_norm",
        candidates={"own": FusedNorm, "mlx": mlx, "plain": PLAIN_OPERATIONS.norm},
        fallback=PLAIN_OPERATIONS.norm,
        sample=lambda make: make(64, weight, 1e-5)(x),
        expected=lambda: mx.fast.rms_norm(x, weight, 1e-5),
        start=start,
        by_rows=lambda makers: switch_makers(makers, num_rows),
    )


def ropes() -> Contest[Any]:
    """The rotation."""
    x = sample(1, 3, 2, 64)

    def expected() -> mx.array:
        turned = mx.fast.rope(x.swapaxes(1, 2), 64, traditional=False, base=10000.0, scale=1.0, offset=5)
        return turned.swapaxes(1, 2)

    def start(make: Any, rows: int) -> Run:
        layer = sizes()
        rope = make(layer.head_dim, 2 * CHUNK)
        if rows == CHUNK:
            return lambda x: rope(x, CHUNK), normal(1, rows, layer.num_heads, layer.head_dim)
        return lambda x: rope(x, [CHUNK] * rows), normal(rows, 1, layer.num_heads, layer.head_dim)

    return Contest(
        name="rope",
        kernel="rotate",
        candidates={"own": FusedRope, "mlx": MlxRope, "plain": RoPE},
        fallback=RoPE,
        sample=lambda make: make(64, 10)(x, 5),
        expected=expected,
        start=start,
        by_rows=lambda makers: switch_makers(makers, lambda x, *_: x.shape[0] * x.shape[1]),
    )


# --- products -----------------------------------------------------------------------------------------------


def projection(matmul: QuantizedMatmul | None, num_outputs: int, num_inputs: int) -> Projection:
    """A projection in 4 bits, or with its weights expanded; a vector keeps about its length."""
    weight = normal(num_outputs, num_inputs) * num_inputs**-0.5
    if matmul is None:
        return as_projection(weight)
    packed = QuantizedWeights(*mx.quantize(weight))
    mx.eval(packed.weight, packed.scales, packed.biases)
    return prepared(QuantizedProjection(packed, None, matmul))


def matmuls() -> Contest[Any]:
    """The product with packed weights; None stands for the product with expanded ones.

    `integer_matmul`, which is given, is the course's as well once `quantized_matmul` works.
    """
    x, packed = sample(2, 128), mx.quantize(sample(3, 128))

    def compute(matmul: QuantizedMatmul | None) -> mx.array:
        return x @ mx.dequantize(*packed).T if matmul is None else matmul(x, QuantizedWeights(*packed))

    def start(matmul: QuantizedMatmul | None, rows: int) -> Run:
        dim = sizes().dim
        layers = cycle([projection(matmul, dim, dim) for _ in range(NUM_WEIGHTS)])
        return lambda x: next(layers)(x), normal(rows, dim)

    on_gpu = is_on_gpu()
    given: dict[str, QuantizedMatmul] = {} if on_gpu else {"given": integer_matmul}
    return Contest(
        name="matmul",
        kernel="quantized_matmul",
        candidates={
            "own": quantized_matmul,
            **given,
            "mlx": mlx_matmul,
            "plain": quantized_matmul_simple if on_gpu else None,
        },
        fallback=None,
        sample=compute,
        expected=lambda: mx.quantized_matmul(x, *packed),
        start=start,
        by_rows=(lambda functions: switch(functions, num_rows)) if on_gpu else None,
        keeps_bits=("own",) if on_gpu else ("given", "mlx", *(("own",) if is_invariant() else ())),
    )


def mlps(matmul: QuantizedMatmul | None) -> Contest[Any]:
    """The feed-forward half of a layer. Weights are joined as it is made, so one part computes all rows."""
    x, plain = sample(3, 64), [sample(128, 64), sample(129, 64)[1:], sample(64, 128)]
    packed = [mx.quantize(weight) for weight in plain]

    def compute(make: Any) -> mx.array:
        kinds = map(as_projection, plain), map(as_quantized, packed)
        return mx.stack([make(64, 128, *kind)(x) for kind in kinds])

    def expected() -> mx.array:
        outputs = []
        for w_gate, w_up, w_down in (plain, [mx.dequantize(*each) for each in packed]):
            gate = x @ w_gate.T
            outputs.append((gate * mx.sigmoid(gate) * (x @ w_up.T)) @ w_down.T)
        return mx.stack(outputs)

    def start(make: Any, rows: int) -> Run:
        E, hidden = sizes().dim, sizes().hidden_dim
        layers = cycle(
            [
                make(
                    E,
                    hidden,
                    *(projection(matmul, *shape) for shape in ((hidden, E), (hidden, E), (E, hidden))),
                )
                for _ in range(NUM_WEIGHTS)
            ]
        )
        return lambda x: next(layers)(x), normal(rows, E)

    return Contest(
        name="mlp",
        kernel="swiglu",
        candidates={"own": fused_mlp, "mlx": mlx_mlp, "plain": PLAIN_OPERATIONS.mlp},
        fallback=PLAIN_OPERATIONS.mlp,
        sample=compute,
        expected=expected,
        start=start,
        close=close_products(),
    )


def as_quantized(packed: tuple[mx.array, mx.array, mx.array]) -> QuantizedProjection:
    """The projection of packed weights by array operations."""
    return QuantizedProjection(QuantizedWeights(*packed))


# --- attention ----------------------------------------------------------------------------------------------


def attentions() -> Contest[Attention]:
    """Attention to a dense cache: one query a row, or a chunk of one row."""
    query, key, value = sample(1, 6, 5, 64), sample(1, 2, 70, 64), sample(1, 2, 70, 64) + 1

    def start(attention: Attention, rows: int) -> Run:
        layer = sizes()
        B, L = (1, CHUNK) if rows == CHUNK else (rows, 1)
        shape = (B, layer.num_kv_heads, layer.num_keys, layer.head_dim)
        keys, values = mx.ones(shape, layer.dtype), mx.ones(shape, layer.dtype)
        mx.eval(keys, values)
        first = normal(B, layer.num_heads, L, layer.head_dim)
        return lambda query: attention(query, keys, values, mask="causal"), first

    return Contest(
        name="attention",
        kernel="dispatch_attention",
        candidates={"own": dispatch_attention, "mlx": mlx_attention, "plain": PLAIN_OPERATIONS.attention},
        fallback=PLAIN_OPERATIONS.attention,
        sample=lambda attention: attention(query, key, value, 0.1, "causal"),
        expected=lambda: mx.fast.scaled_dot_product_attention(query, key, value, scale=0.1, mask="causal"),
        start=start,
        by_rows=lambda functions: switch(functions, num_decodes),
    )


def num_decodes(query: mx.array, *_: object) -> int:
    """Rows of one query each; CHUNK stands for any other shape."""
    return query.shape[0] if query.shape[-2] == 1 else CHUNK


def paged_attentions() -> Contest[PagedAttention]:
    """Attention to blocks: one query a sequence, or a chunk of one sequence."""
    keys, values = sample(4, 16, 2, 64), sample(4, 16, 2, 64) + 1
    query, tables = sample(12, 6, 64), mx.array([[3, 1], [2, 0]])
    places = tables, mx.array([0, 11, 12]), mx.array([23, 5])

    def expected() -> mx.array:
        outputs = [
            mx.fast.scaled_dot_product_attention(
                rows.swapaxes(0, 1)[None],
                *(x[tables[i]].reshape(1, -1, 2, 64)[:, :S].swapaxes(1, 2) for x in (keys, values)),
                scale=0.125,
                mask="causal",
            )
            for i, (rows, S) in enumerate(((query[:11], 23), (query[11:], 5)))
        ]
        return mx.concatenate([output[0].swapaxes(0, 1) for output in outputs])

    def start(attention: PagedAttention, rows: int) -> Run:
        layer = sizes()
        N = 1 if rows == CHUNK else rows
        num_blocks = layer.num_keys // BLOCK_SIZE
        shape = (N * num_blocks, BLOCK_SIZE, layer.num_kv_heads, layer.head_dim)
        blocks = mx.ones(shape, layer.dtype), mx.ones(shape, layer.dtype)
        tables = mx.arange(N * num_blocks, dtype=mx.int32).reshape(N, num_blocks)
        starts = mx.arange(N + 1, dtype=mx.int32) * (rows // N)
        places = tables, starts, mx.full(N, layer.num_keys, dtype=mx.int32)
        mx.eval(blocks, places)
        attend = unchecked(attention)
        return lambda query: attend(query, *blocks, *places), normal(rows, layer.num_heads, layer.head_dim)

    def by_rows(functions: Mapping[int, PagedAttention]) -> PagedAttention:
        return checked(switch({rows: unchecked(each) for rows, each in functions.items()}, num_paged_decodes))

    return Contest(
        name="paged attention",
        kernel="dispatch_paged_attention",
        candidates={"own": dispatch_paged_attention, "mlx": mlx_paged_attention, "plain": paged_attention},
        fallback=paged_attention,
        sample=lambda attention: attention(query, keys, values, *places),
        expected=expected,
        start=start,
        by_rows=by_rows,
    )


def num_paged_decodes(query: mx.array, *others: mx.array) -> int:
    """Sequences of one query each; CHUNK stands for any other batch."""
    return query.shape[0] if query.shape[0] == others[-1].size else CHUNK


def attention_layers(parts: Operations) -> Contest[Any]:
    """Self-attention with its projections; weights are joined as it is made, so one part computes all rows.

    Args:
        parts: what it is made of; the course's needs its own rotation, which on a GPU is the same kernel.
    """
    config, x = ModelConfig("llama", 64, 1, 1, 4, 2, 16, 1, 10), sample(2, 3, 64)
    packed = [mx.quantize(sample(size, 64)) for size in (64, 32, 32, 64)]
    plain = PLAIN_OPERATIONS.attention_layer

    def compute(make: Any) -> mx.array:
        rope = RoPE(16, 10) if make is plain else FusedRope(16, 10)
        output: mx.array = make(config, *map(as_quantized, packed), rope)(x, 4)
        return output

    def start(make: Any, rows: int) -> Run:
        layer = sizes()
        E, H_q, H, D = layer.dim, layer.num_heads, layer.num_kv_heads, layer.head_dim
        config = ModelConfig("llama", E, 1, layer.hidden_dim, H_q, H, D, 1, 2 * CHUNK)
        make_rope = FusedRope if make is fused_attention else parts.rope
        rope = make_rope(D, 2 * CHUNK, 10000, False, None)
        shapes = (H_q * D, E), (H * D, E), (H * D, E), (E, H_q * D)
        layers = cycle(
            [
                make(
                    config,
                    *(projection(parts.matmul, *shape) for shape in shapes),
                    rope,
                    attention=parts.attention,
                )
                for _ in range(NUM_WEIGHTS)
            ]
        )
        return lambda x: next(layers)(x), normal(*((1, rows) if rows == CHUNK else (rows, 1)), E)

    can_rotate = is_on_gpu() or parts.rope is FusedRope
    return Contest(
        name="attention layer",
        kernel="split_heads",
        candidates={**({"own": fused_attention} if can_rotate else {}), "plain": plain},
        fallback=plain,
        sample=compute,
        expected=lambda: compute(plain),
        start=start,
        keeps_bits=("own", "plain"),
    )
