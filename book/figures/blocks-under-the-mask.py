"""Blocks of queries and keys under the causal mask: skipped, masked or free, printed as an SVG."""

from tiny_llm_ref.ops.flash_attention import block_mask, visible_blocks

ORANGE = "#d97a1f"
L, S, QUERY_BLOCK, KEY_BLOCK, CELL = 6, 10, 2, 3, 26
LEFT, TOP = 70, 44


def place(query: int, key: int) -> tuple[int, int]:
    """Where a score is drawn."""
    return LEFT + CELL * key + 4 * (key // KEY_BLOCK), TOP + CELL * query + 4 * (query // QUERY_BLOCK)


def cell(query: int, key: int) -> str:
    """One score: seen, hidden within a block, or never computed."""
    first = query // QUERY_BLOCK * QUERY_BLOCK
    queries = range(first, first + QUERY_BLOCK)
    block = next((keys for keys in visible_blocks(queries, L, S, KEY_BLOCK, True) if key in keys), None)
    is_seen = key <= query + S - L
    if block is None:
        look = 'fill="none" stroke="currentColor" stroke-opacity="0.25"'
    elif block_mask("causal", queries, block, L, S) is None:
        look = 'fill-opacity="0.45"'
    else:
        look = f'fill="{ORANGE}" fill-opacity="{0.85 if is_seen else 0.25}"'
    x, y = place(query, key)
    return f'<rect x="{x}" y="{y}" width="{CELL - 3}" height="{CELL - 3}" rx="2" {look}/>'


def main() -> None:
    """Print the figure."""
    names = [
        f'<text x="{place(0, key)[0] + 11}" y="{TOP - 6}" text-anchor="middle">{key}</text>'
        for key in range(S)
    ] + [
        f'<text x="{LEFT - 8}" y="{place(query, 0)[1] + 15}" text-anchor="end">query {query}</text>'
        for query in range(L)
    ]
    cells = [cell(query, key) for query in range(L) for key in range(S)]
    legend = "".join(
        f'<rect x="8" y="{y}" width="14" height="14" rx="2" {look}/><text x="28" y="{y + 11}">{text}</text>'
        for y, look, text in (
            (232, 'fill-opacity="0.45"', "computed, no mask needed"),
            (252, f'fill="{ORANGE}" fill-opacity="0.85"', "computed with a mask; faint: hidden by it"),
            (272, 'fill="none" stroke="currentColor" stroke-opacity="0.25"', "never computed"),
        )
    )
    print(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 294" fill="currentColor" font-size="11" '
        'role="img">'
        "<title>Blocks of scores under the causal mask</title>"
        f"<desc>{L} queries that are the last of {S} positions, in blocks of {QUERY_BLOCK} queries and "
        f"{KEY_BLOCK} keys. Blocks left of the diagonal need no mask, those it crosses do, and keys after "
        "the last query of a block are not computed.</desc>"
        f'<text x="{LEFT}" y="18" font-weight="600">keys, in blocks of {KEY_BLOCK}</text>'
        f"{''.join(names)}{''.join(cells)}{legend}</svg>"
    )


if __name__ == "__main__":
    main()
