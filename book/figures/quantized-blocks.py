"""What the queries of a step see as codes and as floats, and where both are stored, printed as an SVG."""

import mlx.core as mx

from kernel_runtime.block_layout import QuantizedBlocks
from tiny_llm_ref import ScheduledTokens, SchedulerOutput, Sequence
from tiny_llm_ref.ops.quantized_blocks import quantize_heads
from tiny_llm_ref.ops.quantized_paged_attention import quantized_paged_attention_simple
from tiny_llm_ref.paging.quantized_batch import QuantizedBatch
from tiny_llm_ref.paging.quantized_kv_pool import QuantizedKvPool
from tiny_llm_ref.scheduling.block_manager import BlockTable

COLOURS = ("#d97a1f", "#3b82c4")
BLOCK_SIZE, NUM_BLOCKS, D = 4, 8, 64
TABLES = {0: [6, 2, 4], 1: [1, 7, 3]}
STEPS = (((0, 0, 5), (1, 0, 10)), ((0, 5, 4), (1, 10, 1)))  # sequence, start, tokens
LONGEST = 11
LEFT, CELL, GAP, ROW = 92, 24, 8, 30
FLOAT_HEIGHT, CODE_HEIGHT = 20, 6  # about as 32 bits to 8.5
SEEN_TOP, STORED_TOP, BLOCK_WIDTH, SLOT = 28, 230, 80, 17
Seen = dict[tuple[int, int], list[bool]]
"""By sequence and position of a query, for each token it sees: whether it sees codes."""


def run() -> tuple[QuantizedKvPool, Seen]:
    """Compute both steps, and find what the queries of the second one see."""
    pool = QuantizedKvPool(1, NUM_BLOCKS, BLOCK_SIZE)
    tables = {id: BlockTable(blocks) for id, blocks in TABLES.items()}
    for step in STEPS:
        entries = [ScheduledTokens(Sequence(id, range(20)), start, count, True) for id, start, count in step]
        batch = QuantizedBatch.of_quantized(SchedulerOutput(tuple(entries)), tables, pool)
    whose = [(entry.sequence.id, entry.start + i) for entry in entries for i in range(entry.num_tokens)]
    return pool, {row: seen_by(batch, pool, i, *row) for i, row in enumerate(whose)}


def seen_by(batch: QuantizedBatch, pool: QuantizedKvPool, row: int, id: int, position: int) -> list[bool]:
    """Mark every token of a sequence by a dimension: lower half for codes, upper half for floats.

    A query of zeros weighs all that it sees alike, so the dimensions of its output that are not 0 tell what
    it has seen, and in which form.
    """
    marks = mx.eye(D)
    codes = mx.zeros((NUM_BLOCKS, BLOCK_SIZE, 1, D))
    floats = mx.zeros((pool.tails.num_tails, BLOCK_SIZE, 1, D))
    for token in range(LONGEST):
        block, place = TABLES[id][token // BLOCK_SIZE], token % BLOCK_SIZE
        codes[block, place, 0] = marks[token]
        floats[int(pool.tails.tail_of[block]), place, 0] = marks[D // 2 + token]
    query = mx.zeros((len(batch.positions), 1, D))
    words = quantize_heads(codes, 8)
    blocks = QuantizedBlocks(words, words, floats, floats)
    output = quantized_paged_attention_simple(query, blocks, batch, batch.tails)[row, 0]
    as_codes, as_floats = (output[0 : D // 2] > 1e-3).tolist(), (output[D // 2 :] > 1e-3).tolist()
    assert all(as_codes[i] != as_floats[i] for i in range(position + 1))
    return as_codes[: position + 1]


def cell(x: float, bottom: float, width: float, is_coded: bool, colour: str) -> str:
    """A token: low as codes, tall as floats."""
    height = CODE_HEIGHT if is_coded else FLOAT_HEIGHT
    return (
        f'<rect x="{x}" y="{bottom - height}" width="{width}" height="{height}" rx="1" fill="{colour}" '
        f'fill-opacity="{0.9 if is_coded else 0.4}" stroke="{colour}"/>'
    )


def text(x: float, y: float, words: str, anchor: str = "start", opacity: float = 1.0) -> str:
    """Words at a place."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill-opacity="{opacity}">{words}</text>'


def column(token: int) -> float:
    """Where a token's cell begins."""
    return LEFT + CELL * token + GAP * (token // BLOCK_SIZE)


def seen_rows(seen: Seen) -> str:
    """A row for each query: the tokens it sees, by block."""
    parts = [text(LEFT - 8, SEEN_TOP - 12, "token", "end")]
    for token in range(LONGEST):
        parts.append(text(column(token) + CELL / 2 - 1, SEEN_TOP - 12, str(token), "middle", 0.7))
    for row, ((id, position), tokens) in enumerate(seen.items()):
        bottom = SEEN_TOP + ROW * row + FLOAT_HEIGHT + (14 if id else 0)
        parts.append(text(LEFT - 8, bottom - 5, f"{'decode' if id else 'chunk'} at {position}", "end"))
        parts += [cell(column(i), bottom, CELL - 2, coded, COLOURS[id]) for i, coded in enumerate(tokens)]
    return "".join(parts)


def stored(pool: QuantizedKvPool) -> str:
    """The pool's blocks after the step, and the blocks of floats."""
    contexts = {id: start + count for id, start, count in STEPS[-1]}
    owners = {block: (id, j) for id, blocks in TABLES.items() for j, block in enumerate(blocks)}
    parts = [text(6, STORED_TOP - 10, f"quantized blocks of the pool, {BLOCK_SIZE} slots each")]
    for block in range(NUM_BLOCKS):
        x, bottom = 6 + BLOCK_WIDTH * (block % 5), STORED_TOP + 24 + 36 * (block // 5)
        id, j = owners.get(block, (0, len(TABLES[0])))
        parts += frames(x, bottom, CODE_HEIGHT, f"block {block}")
        count = BLOCK_SIZE if (j + 1) * BLOCK_SIZE <= contexts[id] else 0
        parts += [cell(x + SLOT * i, bottom, SLOT - 3, True, COLOURS[id]) for i in range(count)]
    top = STORED_TOP + 96
    parts.append(text(6, top - 10, "blocks of floats"))
    held = {int(pool.tails.tail_of[block]): block for block in (2, 4, 3)}
    for number in range(1, pool.tails.num_tails):
        x, bottom = 6 + BLOCK_WIDTH * (number - 1), top + 36
        block = held.get(number)
        name = "free" if block is None else f"block {block}"
        parts += frames(x, bottom, FLOAT_HEIGHT, f"{number}: {name}")
        if block is not None:
            id, j = owners[block]
            count = min(BLOCK_SIZE, contexts[id] - j * BLOCK_SIZE)
            parts += [cell(x + SLOT * i, bottom, SLOT - 3, False, COLOURS[id]) for i in range(count)]
    return "".join(parts)


def frames(x: float, bottom: float, height: int, name: str) -> list[str]:
    """A block's empty slots below its name."""
    slots = [
        f'<rect x="{x + SLOT * i}" y="{bottom - height}" width="{SLOT - 3}" height="{height}" rx="1" '
        'fill="none" stroke="currentColor" stroke-opacity="0.35"/>'
        for i in range(BLOCK_SIZE)
    ]
    return [text(x, bottom - height - 4, name, opacity=0.7), *slots]


def main() -> None:
    """Print the figure."""
    pool, seen = run()
    told = "; ".join(
        f"the {'decode' if id else 'chunk'} at {position} sees {sum(tokens)} tokens as codes and "
        f"{len(tokens) - sum(tokens)} as floats"
        for (id, position), tokens in seen.items()
    )
    print(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 414 372" fill="currentColor" font-size="11" '
        'role="img">'
        "<title>What the queries of a step see as codes, and what as floats</title>"
        f"<desc>Blocks of {BLOCK_SIZE}: {told}.</desc>"
        f"{seen_rows(seen)}{stored(pool)}</svg>"
    )


if __name__ == "__main__":
    main()
