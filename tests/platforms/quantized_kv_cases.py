"""Cases of the kernels of quantized keys and values, for `test_neon.py`."""

import itertools
from collections.abc import Iterator

import numpy as np

from tests.platforms.neon_runs import Case, Numbers
from tests.support.oracles import grouped_attention

Cases = Iterator[tuple[str, Case]]


def normal(*shape: int, seed: int = 1) -> Numbers:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def quantized(x: Numbers, bits: int) -> tuple[Numbers, Numbers]:
    """The words of each head of x [..., D], and what they stand for."""
    D, size = x.shape[-1], 32 if x.shape[-1] % 64 else 64
    groups = x.reshape(*x.shape[:-1], -1, size)
    lowest, highest = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    scales = np.maximum((highest - lowest) / np.float32(2**bits - 1), np.float32(2**-14)).astype(np.float16)
    biases = lowest.astype(np.float16)
    exact_scales, exact_biases = scales.astype(np.float32), biases.astype(np.float32)
    codes = np.clip(np.rint((groups - exact_biases) * (1 / exact_scales)), 0, 2**bits - 1)
    per_word = 32 // bits
    rows = codes.astype(np.uint32).reshape(*x.shape[:-1], D // per_word, per_word)
    words = (rows << np.arange(0, 32, bits, dtype=np.uint32)).sum(-1).astype(np.uint32)
    grids = np.concatenate([scales, biases], -1).reshape(*x.shape[:-1], -1).view(np.uint32)
    plain = (codes.astype(np.float64) * exact_scales + exact_biases).reshape(x.shape)
    return np.concatenate([words, grids], -1), plain


def shortened(x: Numbers, kind: int) -> tuple[Numbers, Numbers]:
    """The bits of x in the type of that number, and what they stand for."""
    if kind == 1:
        bits = (x.view(np.uint32) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32)
    stored = x.astype(np.float16 if kind == 2 else np.float32)
    return stored, stored.astype(np.float32)


def quantize_blocks_cases() -> Cases:
    places = np.int32([3, 0, 2, 1])
    for bits, D, kind in itertools.product((4, 8), (32, 64, 96, 128), range(3)):
        x = normal(5, 3, 2, D, seed=D) * 3 + 1
        x[0, 0] = 7.25  # entries that are all equal
        stored, plain = shortened(x, kind)
        tails = np.int32([0, 2, 4, 1])
        words, _ = quantized(plain, bits)
        expected = words[tails[np.argsort(places)]]
        case = Case([np.zeros_like(expected), stored, tails, places], [expected], (bits, kind), 0, np.uint32)
        yield f"{bits} bits, D {D}, type {kind}", case


def quantized_paged_attention_cases() -> Cases:
    batches = (((1, 1),), ((1, 257), (3, 3), (1, 64)), ((33, 40), (1, 65), (9, 100)))
    for batch, block_size, D, (H_q, H), kind, bits in itertools.product(
        batches, (1, 8, 16), (32, 128), ((2, 1), (3, 3)), range(3), ((8, 8), (8, 4))
    ):
        num_blocks = [-(-S // block_size) for _, S in batch]
        tables = np.full((len(batch), max(num_blocks)), -1, np.int32)
        order = np.random.default_rng(5).permutation(sum(num_blocks)).astype(np.int32)
        for row, blocks in enumerate(np.split(order, np.cumsum(num_blocks)[:-1])):
            tables[row, : len(blocks)] = blocks
        starts = np.int32([0, *itertools.accumulate(L for L, _ in batch)])
        query = normal(starts[-1], H_q, D)
        shape = (sum(num_blocks), block_size, H, D)
        stored, floats = zip(*(shortened(normal(*shape, seed=seed), kind) for seed in (2, 3)), strict=True)
        words, plain = zip(*map(quantized, floats, bits), strict=True)
        tails, outputs = list[int](), list[Numbers]()
        for row, (L, S) in enumerate(batch):
            own = tables[row, : num_blocks[row]]
            for place in range(S - L, S):
                num_full = (place + 1) // block_size * block_size
                tails.append(own[place // block_size])
                seen = [
                    np.concatenate([x[own].reshape(-1, H, D)[:num_full], y[own].reshape(-1, H, D)[num_full:]])
                    for x, y in zip(plain, floats, strict=True)
                ]
                heads = [x[: place + 1].swapaxes(0, 1)[None].astype(np.float64) for x in seen]
                own_query = query[len(tails) - 1][None, :, None].astype(np.float64)
                attended = grouped_attention(own_query, *heads, 0.3, np.zeros((1, place + 1)))
                outputs.append(attended[0, :, 0])
        inputs = [query, *words, *stored, tables, np.int32(tails), starts, np.int32([S for _, S in batch])]
        name = f"{batch}, blocks of {block_size}, D {D}, {H_q} heads, type {kind}, bits {bits}"
        yield name, Case(inputs, [np.stack(outputs)], (0.3, kind))
