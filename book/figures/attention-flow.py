"""Attention of three queries over five keys with its numbers as shades, printed as an SVG."""

import mlx.core as mx
import numpy as np

import tiny_llm_ref

CELL = 17
SHAPES = ((3, 4), (5, 4), (5, 4))  # query, key and value
PICKED = 1  # the query whose way is outlined


def grid(x: float, y: float, matrix: mx.array, title: str, picked: int | None = None) -> str:
    """A matrix as squares, darker for larger numbers, with a title above and one row outlined."""
    values = np.array(matrix)
    low, span = values.min(), np.ptp(values)
    parts = [f'<text x="{x}" y="{y - 6}">{title}</text>']
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            shade = 0.06 + 0.74 * (value - low) / span
            parts.append(
                f'<rect x="{x + CELL * j}" y="{y + CELL * i}" width="{CELL - 1}" height="{CELL - 1}" '
                f'fill-opacity="{shade:.2f}"/>'
            )
    if picked is not None:
        parts.append(
            f'<rect x="{x - 1.5}" y="{y + CELL * picked - 1.5}" width="{CELL * len(values[0]) + 2}" '
            f'height="{CELL + 2}" fill="none" stroke="#d97a1f" stroke-width="2"/>'
        )
    return "".join(parts)


def sign(x: float, y: float, text: str) -> str:
    """An operator between two matrices."""
    return f'<text x="{x}" y="{y}" text-anchor="middle" font-size="14">{text}</text>'


def main() -> None:
    """Print the figure."""
    query, key, value = (mx.random.normal(shape, key=mx.random.key(i)) for i, shape in enumerate(SHAPES))
    scores = (query @ key.T) * query.shape[-1] ** -0.5
    weights = tiny_llm_ref.softmax(scores, axis=-1)
    output = tiny_llm_ref.scaled_dot_product_attention_simple(query, key, value)
    print(
        '<svg style="max-width: 520px" viewBox="0 0 360 232" fill="currentColor" font-size="11" '
        'role="img">'
        "<title>Attention as two matrix products with a softmax between them</title>"
        "<desc>Query [L, D] times the transposed key [D, S] gives scores [L, S]. Softmax makes weights "
        "[L, S] of them, row by row. Weights times value [S, D] give the output [L, D]. One query's row is "
        "outlined in each.</desc>"
        + grid(8, 30, query, "query [L, D]", PICKED)
        + sign(93, 68, "&#215;")
        + grid(112, 30, key.T, "keyᵀ [D, S]")
        + sign(222, 68, "→")
        + grid(246, 30, scores, "scores [L, S]", PICKED)
        + '<text x="246" y="98">scaled by 1/√D</text>'
        + sign(289, 122, "↓ softmax")
        + grid(246, 150, weights, "weights [L, S]", PICKED)
        + '<text x="246" y="218">each row sums to 1</text>'
        + sign(222, 180, "&#215;")
        + grid(135, 140, value, "value [S, D]")
        + sign(106, 180, "←")
        + grid(8, 150, output, "output [L, D]", PICKED)
        + "</svg>"
    )


if __name__ == "__main__":
    main()
