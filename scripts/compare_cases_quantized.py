"""The inputs of `pdm run compare` for quantized weights and FlashAttention: week 2 days 2 to 5."""

from dataclasses import asdict
from types import ModuleType
from typing import TYPE_CHECKING

import mlx.core as mx

from scripts.checkpoints import SHIPPED_MODEL, resolve_checkpoint
from scripts.compare_cases import case, module, normal, small_config, token_ids, triangle, weights
from scripts.compare_trees import Tree

if TYPE_CHECKING:
    from tiny_llm_ref.flash_attention import SoftmaxState
    from tiny_llm_ref.quantize import QuantizedWeights

# week 2 day 2

LAYOUTS = ((4, 64), (8, 32), (3, 128))  # bits and group size


@case("packing.unpack")
def unpacked(tiny: ModuleType) -> Tree:
    """4, 8 and 3 bits."""
    packed = {bits: mx.quantize(normal(509, 384), group_size=64, bits=bits)[0] for bits in (4, 8, 3)}
    return [module(tiny, "packing").unpack(codes, bits) for bits, codes in packed.items()]


@case("packing.pack")
def packed(tiny: ModuleType) -> Tree:
    """4, 8 and 3 bits."""
    values = {bits: mx.abs(100 * normal(509, 384)).astype(mx.uint32) % 2**bits for bits in (4, 8, 3)}
    return [module(tiny, "packing").pack(codes, bits) for bits, codes in values.items()]


def packed_weights(tiny: ModuleType, *shape: int, bits: int = 4, group_size: int = 64) -> "QuantizedWeights":
    """Normal-distributed weights as MLX packs them."""
    parts = mx.quantize(normal(*shape), group_size=group_size, bits=bits)
    found: QuantizedWeights = module(tiny, "quantize").QuantizedWeights(*parts, group_size, bits)
    return found


@case("quantize.QuantizedWeights")
def sizes(tiny: ModuleType) -> Tree:
    """Shape, bytes, bits."""
    held = [packed_weights(tiny, 127, 384, bits=bits, group_size=size) for bits, size in LAYOUTS]
    return [[list(each.shape), each.num_bytes, each.bits_per_weight] for each in held]


@case("quantize.quantize_weights")
def quantized(tiny: ModuleType) -> Tree:
    """4, 8 and 3 bits."""
    quantize = module(tiny, "quantize").quantize_weights
    return [asdict(quantize(normal(127, 384), size, bits)) for bits, size in LAYOUTS]


@case("quantize.dequantize_weights")
def dequantized(tiny: ModuleType) -> Tree:
    """4, 8 and 3 bits."""
    dequantize = module(tiny, "quantize").dequantize_weights
    return [dequantize(packed_weights(tiny, 509, 384, bits=bits, group_size=size)) for bits, size in LAYOUTS]


@case("quantize.quantized_matmul_simple")
def product(tiny: ModuleType) -> Tree:
    """Of 37 rows."""
    return module(tiny, "quantize").quantized_matmul_simple(normal(37, 384), packed_weights(tiny, 509, 384))


@case("quantize.quantized_linear")
def quantized_linear(tiny: ModuleType) -> Tree:
    """With a bias."""
    held = packed_weights(tiny, 509, 384)
    return module(tiny, "quantize").quantized_linear(normal(2, 7, 384), held, normal(509, seed=1))


@case("embedding.QuantizedEmbedding")
def quantized_embedding(tiny: ModuleType) -> Tree:
    """Vectors, and as a head."""
    layer = module(tiny, "embedding").QuantizedEmbedding(1031, 192, packed_weights(tiny, 1031, 192))
    return {
        "vectors": layer(mx.array([token_ids(67)])),
        "logits": layer.as_linear(normal(1, 7, 192, seed=1)),
    }


def packed_checkpoint() -> dict[str, mx.array]:
    """The small model's tensors, its matrices packed in 4 bits."""
    found: dict[str, mx.array] = {}
    for name, tensor in weights().items():
        layer = name.removesuffix(".weight")
        parts = mx.quantize(tensor, group_size=32, bits=4) if tensor.ndim == 2 else (tensor,)
        names = ("weight", "scales", "biases")[: len(parts)]
        found |= {f"{layer}.{part}": each for part, each in zip(names, parts, strict=True)}
    return found


@case("packed_loader.PackedTensors")
def packed_model(tiny: ModuleType) -> Tree:
    """A packed model's logits."""
    quantization = tiny.loader.Quantization({"bits": 4, "group_size": 32})
    held = module(tiny, "packed_loader").PackedTensors(packed_checkpoint(), quantization)
    return tiny.loader.build_model(small_config(tiny), held)(mx.array([token_ids(17)]))


@case("packed_loader.load_packed_model")
def loaded_packed_model(tiny: ModuleType) -> Tree:
    """The shipped checkpoint."""
    load = module(tiny, "packed_loader").load_packed_model
    return load(resolve_checkpoint(SHIPPED_MODEL), mx.float32)(mx.array([token_ids(23)]), logits_to_keep=1)


@case("roofline.decode_bytes_per_token")
def weight_bytes(tiny: ModuleType) -> Tree:
    """Plain, packed, float16."""
    count, config = module(tiny, "roofline").decode_bytes_per_token, small_config(tiny)
    held = (weights(), packed_checkpoint())
    return [count(config, tensors, dtype) for tensors in held for dtype in (None, mx.float16)]


@case("roofline.cache_bytes_per_token")
def cache_bytes(tiny: ModuleType) -> Tree:
    """In two types."""
    count = module(tiny, "roofline").cache_bytes_per_token
    return [count(small_config(tiny), dtype) for dtype in (mx.float32, mx.float16)]


@case("roofline.bandwidth_limit")
def limits(tiny: ModuleType) -> Tree:
    """1 to 64 requests."""
    limit = module(tiny, "roofline").bandwidth_limit
    return [limit(1e11, 10**9, batch_size, 10**6) for batch_size in range(1, 65)]


# week 2 day 4


def state_of(tiny: ModuleType) -> "SoftmaxState":
    """What two blocks of keys leave behind, the first of them hidden from half of the queries."""
    flash = module(tiny, "flash_attention")
    state: SoftmaxState = flash.empty_state((3, 64), 32)
    hidden = mx.where(mx.arange(64)[:, None] < 32, -mx.inf, 0.0)
    for seed in range(2):
        scores = 3 * normal(3, 64, 127, seed=seed) + (hidden if seed == 0 else 0)
        state = flash.absorb_block(state, scores, normal(3, 127, 32, seed=seed + 5))
    return state


@case("flash_attention.empty_state")
def empty(tiny: ModuleType) -> Tree:
    """Of 64 queries."""
    return parts_of(module(tiny, "flash_attention").empty_state((3, 64), 32))


def parts_of(state: "SoftmaxState") -> Tree:
    """The arrays of a state by their names."""
    return {name: getattr(state, name) for name in ("maximum", "total", "weighted")}


@case("flash_attention.absorb_block")
def absorbed(tiny: ModuleType) -> Tree:
    """Two blocks of keys."""
    return parts_of(state_of(tiny))


@case("flash_attention.weighted_average")
def averaged(tiny: ModuleType) -> Tree:
    """Of two blocks of keys."""
    return module(tiny, "flash_attention").weighted_average(state_of(tiny))


@case("flash_attention.visible_blocks")
def blocks(tiny: ModuleType) -> Tree:
    """Causal, and all."""
    visible = module(tiny, "flash_attention").visible_blocks
    found = [visible(range(32, 64), 97, 193, 16, is_causal) for is_causal in (True, False)]
    return [[[keys.start, keys.stop] for keys in each] for each in found]


@case("flash_attention.block_mask")
def masks(tiny: ModuleType) -> Tree:
    """Causal, given, none."""
    mask = module(tiny, "flash_attention").block_mask
    place = (range(32, 64), range(112, 144), 97, 193)
    return [mask(given, *place) for given in ("causal", triangle(97, 193), None)]


@case("flash_attention.attend_queries")
def attended(tiny: ModuleType) -> Tree:
    """32 of 97 queries."""
    inputs = (normal(6, 97, 32), normal(6, 193, 32, seed=1), normal(6, 193, 32, seed=2))
    return module(tiny, "flash_attention").attend_queries(*inputs, "causal", range(32, 64), 64)


@case("flash_attention.flash_attention")
def flash(tiny: ModuleType) -> Tree:
    """Causal, in blocks of 64."""
    inputs = (normal(2, 6, 193, 32), normal(2, 2, 257, 32, seed=1), normal(2, 2, 257, 32, seed=2))
    flash_attention = module(tiny, "flash_attention").flash_attention
    return flash_attention(*inputs, mask="causal", query_block=64, key_block=64)
