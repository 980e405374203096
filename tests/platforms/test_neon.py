"""The C++ kernels in arm64's vectors of 4 floats, against sums in double precision."""

import itertools
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from tests.platforms.kernel_sources import CPU_SOURCES
from tests.platforms.neon_runs import LANES, SIMD_OPERATIONS, Case, Numbers, check_cases, start_builds
from tests.platforms.quantized_kv_cases import (
    normal,
    quantize_blocks_cases,  # noqa: F401 - found by its name, as the next one
    quantized_paged_attention_cases,  # noqa: F401
    shortened,
)
from tests.support.oracles import causal_mask, expected_kept, grouped_attention, rms_norm, silu

pytestmark = pytest.mark.sampled(3, "kernel_runtime/", "tiny_llm_ref/kernels/")
SIMD = (
    "sum",
    "exponential",
    "add_dot_pairs",
    "load_first",
    "store_first",
    "load_bytes",
    "halves_to_floats",
)
FUNCTIONS = {f"simd_{name}": SIMD_OPERATIONS for name in SIMD} | {
    source.stem: source for source in CPU_SOURCES
}
PRODUCTS = ("quantized_matmul_simple", "quantized_matmul_simd", "integer_matmul")
ROWS, COLUMNS = (1, 2, 3, 7, 8, 9, 16, 17, 23), (1, 2, 7, 8, 9, 17)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, "Future[Path]"]:
    return start_builds(tmp_path_factory.mktemp("neon"), FUNCTIONS)


def test_every_kernel_has_cases_and_all_cases_have_a_kernel() -> None:
    named = {name.removesuffix("_cases") for name in globals() if name.endswith("_cases")}
    assert {*named - {"product", "check"}, *PRODUCTS} == FUNCTIONS.keys()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_kernel(function: str, programs: dict[str, "Future[Path]"]) -> None:
    make = product_cases if function in PRODUCTS else globals()[f"{function}_cases"]
    cases = dict(make(function) if function in PRODUCTS else make())
    assert cases
    check_cases(programs[function].result(), cases)


Cases = Iterator[tuple[str, Case]]


def integers(low: int, high: int, *shape: int, seed: int = 1) -> Numbers:
    return np.random.default_rng(seed).integers(low, high, shape, dtype=np.int64)


def exact(*arrays: Numbers) -> list[Numbers]:
    return [array.astype(np.float64) for array in arrays]


# --- simd.h -------------------------------------------------------------------------------------------------


def simd_sum_cases() -> Cases:
    x = normal(99 * LANES)
    yield "sums", Case([x], [exact(x)[0].reshape(99, LANES).sum(axis=1)])


def simd_exponential_cases() -> Cases:
    for first, last in ((-90, -80), (-80, -1), (-1, 1), (1, 80), (80, 88)):
        x = np.linspace(first, last, 400, dtype=np.float32)
        powers = np.where(x < -87, 0.0, np.exp(exact(x)[0]))
        for part in range(0, 400, LANES):  # few at a time, so that each bound is near its entries
            at = slice(part, part + LANES)
            yield f"of {x[part]} on", Case([x[at]], [powers[at]], error=3e-7)
    infinite = np.float32([-np.inf, -1000, -88, 0])
    yield "of what is infinite or very small", Case([infinite], [np.float64([0, 0, 0, 1])], error=0)


def simd_add_dot_pairs_cases() -> Cases:
    pairs = [integers(-32767, 32768, 400, 2, seed=seed) for seed in (1, 2)]
    pairs[1] //= 128  # as with weights, or 32 bits would not hold the sum
    pairs[1][:4], pairs[0][:4] = [[255, 255], [-255, 255], [-1, -1], [0, 255]], [[-32767, 32767]] * 4
    sums = integers(-(2**28), 2**28, 400)
    packed = [(pair[:, 0] & 0xFFFF | pair[:, 1] << 16).astype(np.int32) for pair in pairs]
    expected = sums + (pairs[0] * pairs[1]).sum(axis=1)
    yield "pairs", Case([sums.astype(np.int32), *packed], [expected], error=0, dtype=np.int32)


def simd_load_first_cases() -> Cases:
    words = integers(-(2**31), 2**31, LANES).astype(np.int32)
    expected = np.stack([np.where(np.arange(LANES) < count, words, 0) for count in range(LANES + 1)])
    yield "words", Case([words], [expected], error=0, dtype=np.int32)


def simd_store_first_cases() -> Cases:
    x = normal(LANES)
    rows = [np.where(np.arange(LANES) < count, exact(x)[0], 1) for count in range(LANES + 1)]
    yield "floats", Case([x], [np.stack(rows)], error=0)


def simd_load_bytes_cases() -> Cases:
    values = integers(0, 256, 64 * LANES)
    packed = np.frombuffer(values.astype(np.uint8).tobytes(), np.int32)
    yield "bytes", Case([packed], [values], error=0, dtype=np.int32)


def simd_halves_to_floats_cases() -> Cases:
    halves = np.arange(2**16, dtype=np.uint16)
    halves = halves[~np.isnan(halves.view(np.float16))]
    words = np.stack([halves, halves[::-1]], axis=-1)[: len(halves) // LANES * LANES]
    expected = words[:, 0].copy().view(np.float16).astype(np.float32).view(np.int32)
    yield "all", Case([words.view(np.int32)], [expected], error=0, dtype=np.int32)


# --- products with packed weights ---------------------------------------------------------------------------


def packed_weights(N: int, K: int, bits: int, group_size: int) -> tuple[list[Numbers], Numbers]:
    """Words, scales and biases, which 16 bits can hold too, and the weights that they stand for."""
    codes = integers(0, 1 << bits, N, K, seed=N + K)
    per_word = 32 // bits
    words = (
        (codes.reshape(N, K // per_word, per_word) << np.arange(0, 32, bits)).sum(axis=2).astype(np.uint32)
    )
    scales, biases = np.round(16 * normal(2, N, K // group_size, seed=2)) / 16
    weights = codes * np.repeat(exact(scales)[0], group_size, 1) + np.repeat(exact(biases)[0], group_size, 1)
    return [words, scales, biases], weights


def arranged(words: Numbers, scales: Numbers, biases: Numbers, grid_type: int) -> Numbers:
    """As `arrange` puts them: 16 columns side by side, of each group its words, its scale and its bias."""
    N, num_groups = scales.shape
    grids = np.stack([scales, biases], axis=-1)
    if grid_type == 1:
        grids = grids.astype(np.float16)
    elif grid_type == 2:  # bfloat16
        grids = (grids.view(np.uint32) >> 16).astype(np.uint16)
    groups = np.concatenate([words.reshape(N, num_groups, -1), grids.view(np.uint32)], axis=-1)
    filled = np.pad(groups, [(0, -N % 16), (0, 0), (0, 0)])
    return np.ascontiguousarray(filled.reshape(-1, 16, *groups.shape[1:]).transpose(0, 2, 3, 1))


def packings() -> Iterator[tuple[int, int, int]]:
    """Bits, group size, and numbers of inputs: of one group, and of some."""
    for bits, group_size in itertools.product((4, 8), (32, 64, 128)):
        for num_groups in (1, 3, 5):
            yield bits, group_size, num_groups * group_size


def product_cases(function: str) -> Cases:
    for bits, group_size, K in packings():
        for M, N in itertools.product(ROWS, COLUMNS):
            packed, weights = packed_weights(N, K, bits, group_size)
            x = normal(M, K, seed=4)
            size, error, numbers = np.abs(exact(x)[0]) @ np.abs(weights).T, 1e-6, [bits, group_size]
            if function == "integer_matmul":
                # An entry of x is off by half a step, of which the largest of its group is 32767.
                largest = np.abs(x).reshape(M, -1, group_size).max(axis=2)
                steps = (
                    np.repeat(largest, group_size, 1)
                    @ np.abs(weights - np.repeat(packed[2], group_size, 1)).T
                )
                size, error = size + steps, 0.5 / 32767
                numbers.append(M % 3)
                packed = [arranged(*packed, grid_type=M % 3)]
            name = f"M {M}, N {N}, K {K}, {bits} bits in groups of {group_size}"
            expected = exact(x)[0] @ weights.T
            yield name, Case([x, *packed], [expected], numbers, error, size=size.max())


def grouped_matmul_cases() -> Cases:
    for bits, group_size, K in packings():
        for counts, N in itertools.product(((1, 0, 0), (0, 9, 1), (8, 3, 17)), (1, 9, 49)):
            packed, weights = packed_weights(len(counts) * N, K, bits, group_size)
            experts = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
            x = normal(len(experts), K, seed=4)
            own = weights.reshape(len(counts), N, K)[experts]  # [R, N, K]
            expected = np.einsum("rk,rnk->rn", exact(x)[0], own)
            size = np.einsum("rk,rnk->rn", np.abs(exact(x)[0]), np.abs(own)).max()
            case = Case([x, experts, *packed], [expected], (bits, group_size), 1e-6, size=size)
            yield f"rows {counts}, N {N}, K {K}, {bits} bits in groups of {group_size}", case


def dequantize_cases() -> Cases:
    for bits, group_size, K in packings():
        for N in COLUMNS:
            packed, weights = packed_weights(N, K, bits, group_size)
            yield f"N {N}, K {K}, {bits} bits", Case(packed, [weights], (bits, group_size), 1e-6)


# --- attention ----------------------------------------------------------------------------------------------


def attend(query: Numbers, key: Numbers, value: Numbers, scale: float, added: Numbers) -> Numbers:
    """[L, H_q, D] from query [L, H_q, D], key and value [S, H, D], and added [H_q, L, S] or [L, S]."""
    heads = [x.swapaxes(0, 1)[None] for x in exact(query, key, value)]
    return grouped_attention(*heads, scale, added)[0].swapaxes(0, 1)


def flash_attention_cases() -> Cases:
    lengths = (
        (1, 1),
        (1, 63),
        (2, 64),
        (1, 65),
        (1, 257),
        (3, 300),
        (5, 64),
        (9, 65),
        (31, 31),
        (33, 128),
        (65, 70),
    )
    for (L, S), D, (H_q, H), kind in itertools.product(lengths, (16, 32, 80), ((2, 1), (3, 3)), range(3)):
        query, key, value = normal(1, H_q, L, D), normal(1, H, S, D, seed=2), normal(1, H, S, D, seed=3)
        mask = normal(1, H_q, L, S, seed=4)
        added = (0.0, causal_mask(L, S), *exact(mask))[kind]
        expected = grouped_attention(*exact(query, key, value), 0.3, added).swapaxes(1, 2)
        inputs = [query, key, value, *([mask] if kind == 2 else [])]
        name = f"L {L}, S {S}, D {D}, {H_q} heads, {('no', 'causal', 'any')[kind]} mask"
        yield name, Case(inputs, [expected], (0.3, kind == 1, kind == 2))


def paged_attention_cases() -> Cases:
    batches = (((1, 1),), ((1, 257), (3, 3), (1, 64)), ((33, 40), (1, 65), (9, 100)))
    heads = ((2, 1), (3, 3))
    for batch, block_size, D, (H_q, H), kind in itertools.product(
        batches, (1, 8, 16), (16, 80), heads, range(3)
    ):
        num_blocks = [-(-S // block_size) for _, S in batch]
        tables = np.full((len(batch), max(num_blocks)), -1, np.int32)
        order = np.random.default_rng(5).permutation(sum(num_blocks)).astype(np.int32)
        for row, blocks in enumerate(np.split(order, np.cumsum(num_blocks)[:-1])):
            tables[row, : len(blocks)] = blocks
        starts = np.int32([0, *itertools.accumulate(L for L, _ in batch)])
        shape = (sum(num_blocks), block_size, H, D)
        query, stored, pools = normal(starts[-1], H_q, D), [], []
        for seed in (2, 3):
            bits, plain = shortened(normal(*shape, seed=seed), kind)
            stored.append(bits)
            pools.append(plain)
        outputs = []
        for row, (L, S) in enumerate(batch):
            own = [pool[tables[row, : num_blocks[row]]].reshape(-1, H, D)[:S] for pool in pools]
            outputs.append(attend(query[starts[row] : starts[row + 1]], *own, 0.3, causal_mask(L, S)))
        inputs = [query, *stored, tables, starts, np.int32([S for _, S in batch])]
        name = f"{batch}, blocks of {block_size}, D {D}, {H_q} heads, type {kind}"
        yield name, Case(inputs, [np.concatenate(outputs)], (0.3, kind))


# --- small operations ---------------------------------------------------------------------------------------


def rotated(x: Numbers, cos: Numbers, sin: Numbers, are_neighbours: bool) -> Numbers:
    """x [L, H, D], turned by rows of the tables [L, D / 2]."""
    half = x.shape[-1] // 2
    first, second = (
        (slice(0, None, 2), slice(1, None, 2)) if are_neighbours else (slice(0, half), slice(half, None))
    )
    result = np.empty(x.shape)
    cos, sin = exact(cos[:, None], sin[:, None])
    result[..., first] = x[..., first] * cos - x[..., second] * sin
    result[..., second] = x[..., second] * cos + x[..., first] * sin
    return result


def rms_norm_cases() -> Cases:
    for rows, E in itertools.product((1, 3), (1, 3, 4, 5, 64, 97)):
        x, weight = normal(rows, E), normal(E, seed=2)
        yield f"{rows} rows of {E}", Case([x, weight], [rms_norm(*exact(x, weight), 1e-3)], (1e-3,))


def rope_cases() -> Cases:
    for L, H, D, are_neighbours in itertools.product((1, 5), (1, 3), (2, 6, 8, 10, 64), (0, 1)):
        x, cos, sin = normal(2, L, H, D), normal(20, D // 2, seed=2), normal(20, D // 2, seed=3)
        places = [slice(first, first + L) for first in (3, 11)]
        expected = np.stack(
            [rotated(row, cos[at], sin[at], bool(are_neighbours)) for row, at in zip(x, places, strict=True)]
        )
        yield (
            f"L {L}, H {H}, D {D}, {are_neighbours}",
            Case([x, cos, sin], [expected], (are_neighbours, 3, 11)),
        )


def split_heads_cases() -> Cases:
    for L, D, are_neighbours, has_norms in itertools.product((1, 5), (2, 8, 10, 64), (0, 1), (0, 1)):
        H_q, H = 3, 1
        product = normal(2, L, (H_q + 2 * H) * D)
        cos, sin, *norms = (
            normal(20, D // 2, seed=2),
            normal(20, D // 2, seed=3),
            normal(D, seed=4),
            normal(D, seed=5),
        )
        parts = np.split(product.reshape(2, L, -1, D), [H_q, H_q + H], axis=2)
        expected = []
        for part, heads in enumerate(parts):
            if part < 2:
                own = rms_norm(*exact(heads, norms[part]), 1e-3) if has_norms else exact(heads)[0]
                turned = [
                    rotated(row, cos[at : at + L], sin[at : at + L], bool(are_neighbours))
                    for row, at in zip(own, (3, 11), strict=True)
                ]
                heads = np.stack(turned)
            expected.append(exact(heads)[0].swapaxes(1, 2))
        numbers = (has_norms, 1e-3, are_neighbours, 3, 11)
        inputs = [product, cos, sin, *(norms if has_norms else [])]
        yield f"L {L}, D {D}, {are_neighbours}, {has_norms}", Case(inputs, expected, numbers)


def gated(gate: Numbers, up: Numbers) -> Numbers:
    return silu(*exact(gate)) * up


def swiglu_cases() -> Cases:
    for size in (1, 3, 4, 5, 8, 97):
        gate, up = 20 * normal(size), normal(size, seed=2)
        yield f"size {size}", Case([gate, up], [gated(gate, up)])


def swiglu_halves_cases() -> Cases:
    for rows, size in itertools.product((1, 3), (1, 3, 4, 5, 8, 97)):
        product = 20 * normal(rows, 2 * size)
        yield f"{rows} rows of {size}", Case([product], [gated(*np.split(product, 2, axis=1))])


def store_rows_cases() -> Cases:
    for size in (1, 3, 8):
        held, new, slots = np.zeros((5, size)), normal(5, size), np.array([3, 0, 4, 1, 2])
        expected = np.zeros((5, size))
        expected[slots] = exact(new)[0]
        inputs = [held.astype(np.float32), new, slots.astype(np.int32)]
        yield f"rows of {size}", Case(inputs, [expected], (4 * size,), error=0)


def mask_rows_cases() -> Cases:
    forbidden = np.float32(-np.inf).view(np.int32)
    for V, bound in itertools.product((1, 31, 32, 33, 100, 40_000), (1, 2**32)):
        rows, bits = np.array([2, 0]), integers(0, bound, 2, -(-V // 32)).astype(np.uint32)
        bits[:, 1::2] = 2**32 - 1
        is_allowed = (bits[:, :, None] >> np.arange(32, dtype=np.uint32) & 1).reshape(2, -1)[:, :V]
        expected = np.full((3, V), -1, np.int32)  # what driver.cpp leaves where nothing is written
        expected[rows] = np.where(is_allowed, expected[rows], forbidden)
        case = Case([normal(3, V), rows.astype(np.int32), bits], [expected], error=0, dtype=np.int32)
        yield f"{V} tokens, words below {bound}", case


def sample_rows_cases() -> Cases:
    cuts = [(0, None, 0), (0.9, None, 0), (0, 7, 0), (0, None, 0.2), (0.95, 40, 0.01)]
    params = [(temperature, *cut) for temperature in (0, 0.7, 2) for cut in cuts]
    for V in (1, 3, 4, 17, 1025):
        logits, numbers, tokens = normal(len(params), V, seed=V), [], []
        for row, (temperature, top_p, top_k, min_p) in zip(exact(logits)[0], params, strict=True):
            kept = expected_kept(row - np.log(np.exp(row).sum()), top_p, top_k, min_p)
            shares = np.where(kept, np.exp(row / (temperature or 1)), 0)
            shares /= shares.sum()
            token = int(row.argmax() if temperature == 0 else shares.argsort()[-min(5, sum(kept))])
            bounds = top_p or np.inf, top_k or np.inf, np.log(min_p) if min_p else -np.inf
            numbers += [temperature, *bounds, shares[:token].sum() + shares[token] / 2]
            tokens.append(token)
        yield f"{V} tokens", Case([logits], [np.array(tokens)], numbers, error=0, dtype=np.int32)
