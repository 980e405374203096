"""Inputs of `pdm run compare` for kernels, week 2 days 3 and 5; small ones for the emulated GPU."""

from types import ModuleType

import mlx.core as mx

from scripts.compare_cases import case, module, normal
from scripts.compare_cases_quantized import packed_weights
from scripts.compare_trees import Tree

CPU = "kernels.cpu"
BITS = (4, 8)
LANGUAGES = ("metal", "cuda")

# week 2 day 3


@case(f"{CPU}.quantized_matmul_simple.quantized_matmul_simple")
def plain_loops(tiny: ModuleType) -> Tree:
    """One row, 4 and 8 bits."""
    multiply = module(tiny, "kernels.quantized_matmul").multiply_simple
    return [multiply(normal(1, 768), packed_weights(tiny, 1021, 768, bits=bits)) for bits in BITS]


@case(f"{CPU}.quantized_matmul_simd.unpack_block")
@case(f"{CPU}.quantized_matmul_simd.arrange")
def vectors_of_one_row(tiny: ModuleType) -> Tree:
    """One row, 4 and 8 bits."""
    multiply = module(tiny, "kernels.quantized_matmul").multiply_simd
    return [multiply(normal(1, 768), packed_weights(tiny, 1021, 768, bits=bits)) for bits in BITS]


@case(f"{CPU}.quantized_matmul_simd.multiply_column")
def vectors_of_some_rows(tiny: ModuleType) -> Tree:
    """11 rows in 4 bits."""
    multiply = module(tiny, "kernels.quantized_matmul").multiply_simd
    return multiply(normal(11, 768), packed_weights(tiny, 1021, 768))


@case(f"{CPU}.dequantize.dequantize")
def expanded_by_kernel(tiny: ModuleType) -> Tree:
    """4 and 8 bits."""
    dequantize = module(tiny, "kernels.quantized_matmul").dequantize
    return [dequantize(packed_weights(tiny, 1021, 768, bits=bits)) for bits in BITS]


@case("kernels.quantized_matmul.quantized_matmul_cpu")
@case("kernels.quantized_matmul.quantized_matmul")
def few_and_many_rows(tiny: ModuleType) -> Tree:
    """3 and 130 rows."""
    multiply = module(tiny, "kernels.quantized_matmul").quantized_matmul
    return [multiply(normal(rows, 768), packed_weights(tiny, 1021, 768)) for rows in (3, 130)]


def emulated_product(tiny: ModuleType, language: str, rows: int) -> Tree:
    """Packed weights times some rows on the emulator."""
    target = module(tiny, "kernels.launch").Target(language, "emulator")
    multiply = module(tiny, "kernels.gpu_operations").quantized_matmul_gpu
    return multiply(normal(rows, 128), packed_weights(tiny, 37, 128), target)


def emulated_attention(tiny: ModuleType, language: str, queries: int) -> Tree:
    """Attention to 70 keys on the emulator."""
    target = module(tiny, "kernels.launch").Target(language, "emulator")
    attend = module(tiny, "kernels.gpu_operations").flash_attention_gpu
    key, value = normal(1, 2, 70, 32, seed=1), normal(1, 2, 70, 32, seed=2)
    return attend(normal(1, 4, queries, 32), key, value, mask="causal", target=target)


for language in LANGUAGES:

    @case(f"kernels.{language}.quantized_matvec.quantized_matvec")
    def few_rows_emulated(tiny: ModuleType, language: str = language) -> Tree:
        """Two rows, emulated."""
        return emulated_product(tiny, language, 2)

    @case(f"kernels.{language}.quantized_matmul.quantized_matmul")
    def many_rows_emulated(tiny: ModuleType, language: str = language) -> Tree:
        """33 rows, emulated."""
        return emulated_product(tiny, language, 33)

    @case(f"kernels.{language}.flash_decode.flash_decode")
    def decode_emulated(tiny: ModuleType, language: str = language) -> Tree:
        """One query, emulated."""
        return emulated_attention(tiny, language, 1)

    @case(f"kernels.{language}.flash_attention.flash_attention")
    def prefill_emulated(tiny: ModuleType, language: str = language) -> Tree:
        """35 queries, emulated."""
        return emulated_attention(tiny, language, 35)


# week 2 day 5


def cpu_attention(tiny: ModuleType, queries: int, keys: int) -> Tree:
    """Causal attention of 6 heads to 2 key heads."""
    attend = module(tiny, "kernels.fast_attention").fast_attention
    key, value = normal(1, 2, keys, 64, seed=1), normal(1, 2, keys, 64, seed=2)
    return attend(normal(1, 6, queries, 64), key, value, mask="causal")


@case(f"{CPU}.flash_attention.score_few")
@case(f"{CPU}.flash_attention.merge")
def decode_of_a_long_cache(tiny: ModuleType) -> Tree:
    """One query, 1,500 keys."""
    return cpu_attention(tiny, 1, 1500)


@case(f"{CPU}.flash_attention.mask_scores")
@case(f"{CPU}.flash_attention.update_softmax")
@case(f"{CPU}.flash_attention.finish")
@case("kernels.fast_attention.fast_attention")
def chunk_of_a_prompt(tiny: ModuleType) -> Tree:
    """131 queries, 400 keys."""
    return cpu_attention(tiny, 131, 400)


@case(f"{CPU}.rms_norm.rms_norm")
def norm_in_one_pass(tiny: ModuleType) -> Tree:
    """512 vectors."""
    return module(tiny, "kernels.fused_operations").rms_norm(normal(512, 576), normal(576, seed=1), 1e-5)


@case(f"{CPU}.rope.rope")
def rotation_in_one_pass(tiny: ModuleType) -> Tree:
    """Both pairings."""
    angles = mx.arange(300)[:, None] * normal(1, 32, seed=1)
    rotate = module(tiny, "kernels.fused_operations").rotate
    x = normal(2, 97, 6, 64)
    return [rotate(x, mx.cos(angles), mx.sin(angles), [5, 200], is_paired) for is_paired in (False, True)]


@case(f"{CPU}.swiglu.swiglu")
def gate_in_one_pass(tiny: ModuleType) -> Tree:
    """512 vectors."""
    return module(tiny, "kernels.fused_operations").swiglu(normal(512, 1536), normal(512, 1536, seed=1))
