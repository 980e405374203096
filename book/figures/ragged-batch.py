"""A step's tokens in the flat batch, and the slots of the pool that they go to, printed as an SVG."""

import numpy as np

from tiny_llm_ref import PagedKvPool, ScheduledTokens, Sequence
from tiny_llm_ref.paging.forward_batch import batch_slots, flatten, pad_block_tables
from tiny_llm_ref.scheduling.block_manager import BlockTable

COLOURS = ("#d97a1f", "#3b82c4", "#4f9d69")
BLOCK_SIZE, NUM_BLOCKS, CELL = 4, 8, 34
NAMES = ("chunk", "decode", "prompt")
TABLES = ([6, 2, 4], [1, 7], [3])
STARTS, LENGTHS = (5, 7, 0), (4, 1, 3)
LEFT, BATCH_TOP, TABLE_TOP, POOL_TOP = 96, 40, 156, 262


def box(
    x: float, y: float, text: object, colour: str = "none", opacity: float = 0.0, width: int = CELL
) -> str:
    """A cell with a text in it."""
    return (
        f'<rect x="{x}" y="{y}" width="{width - 3}" height="22" rx="2" fill="{colour}" '
        f'fill-opacity="{opacity}" stroke="currentColor" stroke-opacity="0.35"/>'
        f'<text x="{x + (width - 3) / 2}" y="{y + 15}" text-anchor="middle">{text}</text>'
    )


def label(y: float, text: str) -> str:
    """What a row of cells is."""
    return f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{text}</text>'


def batch(whose: list[int], positions: list[int], slots: list[int], starts: list[int]) -> str:
    """The rows of the batch: starts above, then whose, position and slot."""
    parts = [
        f'<text x="{LEFT + CELL * start - 2}" y="{BATCH_TOP - 8}" text-anchor="middle">{start}</text>'
        f'<path d="M{LEFT + CELL * start - 2} {BATCH_TOP - 4}v84" stroke="currentColor" stroke-width="1.2"/>'
        for start in starts
    ]
    parts.append(label(BATCH_TOP - 23, "query_start_loc"))
    for row, (name, numbers) in enumerate(
        (("row", range(len(whose))), ("position", positions), ("slot", slots))
    ):
        y = BATCH_TOP + 27 * row
        parts.append(label(y, name))
        parts += [
            box(LEFT + CELL * i, y, number, COLOURS[owner], 0.45 if row == 0 else 0.12)
            for i, (owner, number) in enumerate(zip(whose, numbers, strict=True))
        ]
    return "".join(parts)


def tables(padded: list[list[int]], contexts: list[int]) -> str:
    """The block tables, and how many tokens of context each has."""
    parts = [f'<text x="{LEFT}" y="{TABLE_TOP - 8}">block tables</text>']
    parts.append(f'<text x="{LEFT + 4 * CELL}" y="{TABLE_TOP - 8}">context lengths</text>')
    for i, (row, context) in enumerate(zip(padded, contexts, strict=True)):
        y = TABLE_TOP + 26 * i
        parts.append(label(y, NAMES[i]))
        for j, block in enumerate(row):
            is_own = j < len(TABLES[i])
            parts.append(box(LEFT + CELL * j, y, block, COLOURS[i] if is_own else "none", 0.3))
        parts.append(box(LEFT + 4 * CELL, y, context))
    return "".join(parts)


def pool(new: dict[int, int], contexts: list[int]) -> str:
    """The blocks of a pool: held slots in the colour of their sequence, those of this step solid."""
    parts = [
        f'<text x="{LEFT}" y="{POOL_TOP - 8}">the pool: {NUM_BLOCKS} blocks of {BLOCK_SIZE} slots</text>'
    ]
    owner_of = {block: (i, j) for i, table in enumerate(TABLES) for j, block in enumerate(table)}
    for block in range(NUM_BLOCKS):
        x, y = LEFT + (block % 4) * 78, POOL_TOP + 46 * (block // 4)
        parts.append(f'<text x="{x}" y="{y + 11}" fill-opacity="0.7">block {block}</text>')
        for i in range(BLOCK_SIZE):
            owner, index = owner_of.get(block, (0, NUM_BLOCKS))
            is_held = index * BLOCK_SIZE + i < contexts[owner]
            is_new = block * BLOCK_SIZE + i in new
            colour = COLOURS[owner] if is_held else "none"
            parts.append(
                f'<rect x="{x + 17 * i}" y="{y + 15}" width="15" height="18" fill="{colour}" '
                f'fill-opacity="{0.9 if is_new else 0.3}" stroke="currentColor" stroke-opacity="0.35"/>'
            )
    return "".join(parts)


def main() -> None:
    """Print the figure."""
    entries = [
        ScheduledTokens(Sequence(i, range(1, 20)), start, length, False)
        for i, (start, length) in enumerate(zip(STARTS, LENGTHS, strict=True))
    ]
    _, positions, starts = flatten(entries)
    padded = pad_block_tables([BlockTable(table) for table in TABLES])
    slots = batch_slots(positions, starts, padded, np.zeros(3, int), PagedKvPool(1, NUM_BLOCKS, BLOCK_SIZE))
    whose = np.repeat(np.arange(3), LENGTHS).tolist()
    contexts = [entry.end for entry in entries]
    print(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 414 356" fill="currentColor" font-size="11" '
        'role="img">'
        "<title>A chunk, a decode and a whole prompt in one flat batch</title>"
        "<desc>Eight rows: four of a chunk at positions 5 to 8, a decode at position 7, three of a prompt at "
        f"positions 0 to 2. query_start_loc is {', '.join(map(str, starts.tolist()))}. Their slots are "
        f"{', '.join(map(str, slots.tolist()))}, found by the block tables {TABLES[0]}, {TABLES[1]} and "
        f"{TABLES[2]} with blocks of four.</desc>"
        f"{batch(whose, positions.tolist(), slots.tolist(), starts.tolist())}"
        f"{tables(padded.tolist(), contexts)}"
        f"{pool(dict.fromkeys(slots.tolist(), 1), contexts)}</svg>"
    )


if __name__ == "__main__":
    main()
