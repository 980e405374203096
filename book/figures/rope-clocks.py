"""The angle of each pair of RoPE at the first positions, as clocks, printed as an SVG."""

import math

import numpy as np

from tiny_llm_ref.ops.positional_encoding import rope_frequencies

DIMS, BASE, NUM_POSITIONS = 8, 100.0, 8
LEFT, TOP, STEP, RADIUS = 76, 42, 36, 13


def clock(column: int, row: int, angle: float) -> str:
    """A circle with a hand that starts at the right and turns with the angle."""
    x, y = LEFT + STEP * column, TOP + STEP * row
    hand_x, hand_y = x + RADIUS * math.cos(angle), y - RADIUS * math.sin(angle)
    return (
        f'<circle cx="{x}" cy="{y}" r="{RADIUS}" fill="currentColor" fill-opacity="0.06" '
        'stroke="currentColor" stroke-opacity="0.35"/>'
        f'<line x1="{x}" y1="{y}" x2="{hand_x:.1f}" y2="{hand_y:.1f}" stroke="#d97a1f" stroke-width="2.5" '
        'stroke-linecap="round"/>'
    )


def main() -> None:
    """Print the figure."""
    frequencies = np.array(rope_frequencies(DIMS, BASE))
    parts = [
        f'<text x="{LEFT + STEP * position}" y="20" text-anchor="middle">{position}</text>'
        for position in range(NUM_POSITIONS)
    ]
    for pair, frequency in enumerate(frequencies):
        y = TOP + STEP * pair
        parts.append(f'<text x="4" y="{y - 1}">pair {pair}</text>')
        parts.append(f'<text x="4" y="{y + 12}" font-size="10">{frequency:.3g} rad</text>')
        parts += [clock(position, pair, position * frequency) for position in range(NUM_POSITIONS)]
    print(
        '<svg style="max-width: 520px" viewBox="0 0 360 180" fill="currentColor" font-size="11" '
        'role="img">'
        "<title>Four pairs of RoPE turning at positions 0 to 7</title>"
        "<desc>Each row is a pair of dimensions, each column a position. Pair 0 turns by one radian a "
        f"position, the last by {frequencies[-1]:.3g}.</desc>"
        '<text x="4" y="20">position</text>' + "".join(parts) + "</svg>"
    )


if __name__ == "__main__":
    main()
