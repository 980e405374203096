"""A batch's rows sorted by expert, and where each token's outputs come from, printed as an SVG."""

import mlx.core as mx

from tiny_llm_ref import group_by_expert, route

COLOURS = ("#d97a1f", "#3b82c4", "#4f9d69", "#8b6fb8", "#b8860b")
NUM_TOKENS, NUM_EXPERTS, NUM_CHOSEN = 5, 4, 2
CELL, LEFT = 34, 66
WIDTH = LEFT + CELL * NUM_TOKENS * NUM_CHOSEN + 8
TOP, ROWS, EXPERTS, BOTTOM = 6, 120, 147, 234


def box(x: float, y: float, width: float, text: object, colour: str = "none", opacity: float = 0.0) -> str:
    """A cell with a text in it."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="22" rx="2" fill="{colour}" '
        f'fill-opacity="{opacity}" stroke="currentColor" stroke-opacity="0.35"/>'
        f'<text x="{x + width / 2}" y="{y + 15}" text-anchor="middle">{text}</text>'
    )


def label(y: float, text: str) -> str:
    """What a line of cells is."""
    return f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{text}</text>'


def middle(row: int) -> float:
    """Where the cell of a row has its middle."""
    return LEFT + CELL * row + (CELL - 3) / 2


def line(x: float, y: float, to_x: float, to_y: float, token: int) -> str:
    """A curve in the colour of a token."""
    half = (y + to_y) / 2
    return (
        f'<path d="M{x} {y}C{x} {half} {to_x} {half} {to_x} {to_y}" fill="none" '
        f'stroke="{COLOURS[token]}" stroke-width="1.5"/>'
    )


def tokens(y: float, name: str) -> str:
    """A box per token, as wide as its rows together."""
    width = CELL * NUM_CHOSEN
    boxes = [
        box(LEFT + width * token, y, width - 3, f"token {token}", COLOURS[token], 0.45)
        for token in range(NUM_TOKENS)
    ]
    return label(y, name) + "".join(boxes)


def choices(y: float, name: str, numbers: list[list[str]]) -> str:
    """A cell for each choice of each token."""
    flat = [(token, text) for token, texts in enumerate(numbers) for text in texts]
    cells = [
        box(LEFT + CELL * i, y, CELL - 3, text, COLOURS[token], 0.12) for i, (token, text) in enumerate(flat)
    ]
    return label(y, name) + "".join(cells)


def sorted_rows(of_rows: list[int], experts: list[int]) -> str:
    """The token of each row, and below it the expert whose weights a run of rows shares."""
    parts = [label(ROWS, "rows"), label(EXPERTS, "read once")]
    parts += [
        box(LEFT + CELL * row, ROWS, CELL - 3, token, COLOURS[token], 0.45)
        for row, token in enumerate(of_rows)
    ]
    for expert in sorted(set(experts)):
        first, count = experts.index(expert), experts.count(expert)
        text = f"expert {expert}" if count > 1 else f"ex. {expert}"
        parts.append(box(LEFT + CELL * first, EXPERTS, CELL * count - 3, text, "currentColor", 0.12))
    return "".join(parts)


def main() -> None:
    """Print the figure."""
    logits = mx.random.normal((NUM_TOKENS, NUM_EXPERTS), key=mx.random.key(6))
    chosen, weights = route(logits, NUM_CHOSEN, is_normalized=True)
    grouping = group_by_expert(chosen)
    of_rows, experts = grouping.tokens.tolist(), grouping.experts.tolist()
    places = grouping.places.tolist()
    there = [
        line(middle(NUM_CHOSEN * token + j), TOP + 51, middle(row), ROWS - 2, token)
        for token, rows in enumerate(places)
        for j, row in enumerate(rows)
    ]
    back = [
        line(middle(row), EXPERTS + 24, middle(NUM_CHOSEN * token + j), BOTTOM - 2, token)
        for token, rows in enumerate(places)
        for j, row in enumerate(rows)
    ]
    counts = ", ".join(f"{experts.count(expert)} of expert {expert}" for expert in sorted(set(experts)))
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {BOTTOM + 82}" fill="currentColor" '
        'font-size="11" role="img">'
        "<title>The rows of five tokens, sorted by expert and put back</title>"
        f"<desc>Five tokens choose the experts {chosen.tolist()}. Sorted by expert, their ten rows are "
        f"{counts}, and hold the tokens {of_rows}. The outputs go back to the tokens from the places "
        f"{places}, and each token adds up its two by the weights.</desc>"
        f"{tokens(TOP, '')}"
        f"{choices(TOP + 27, 'experts', [[str(number) for number in row] for row in chosen.tolist()])}"
        f"{''.join(there)}{sorted_rows(of_rows, experts)}{''.join(back)}"
        f"{choices(BOTTOM, 'places', [[str(place) for place in row] for row in places])}"
        f"{choices(BOTTOM + 27, 'weights', [[f'.{100 * w:02.0f}' for w in row] for row in weights.tolist()])}"
        f"{tokens(BOTTOM + 54, 'sums')}</svg>"
    )


if __name__ == "__main__":
    main()
