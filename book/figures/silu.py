"""SiLU beside ReLU and the sigmoid, printed as an SVG."""

import mlx.core as mx
import numpy as np

import tiny_llm_ref

LEFT, RIGHT, TOP, BOTTOM = 28, 350, 30, 166
LOW, HIGH = -5.0, 3.0
CURVES = (
    ("silu(x) = x &#963;(x)", "#d97a1f", ""),
    ("relu(x)", "#3b82c4", "6 3"),
    ("sigmoid &#963;(x)", "#3f9a5a", "2 2"),
)


def place(x: float, y: float) -> str:
    """A point of the plot as "x,y"."""
    across = LEFT + (RIGHT - LEFT) * (x - LOW) / (HIGH - LOW)
    return f"{across:.1f},{BOTTOM - (BOTTOM - TOP) * (y + 0.4) / 3.4:.1f}"


def main() -> None:
    """Print the figure."""
    x = mx.linspace(LOW, HIGH, 81)
    functions = (tiny_llm_ref.silu(x), mx.maximum(x, 0), mx.sigmoid(x))
    parts = [
        f'<path d="M{place(LOW, 0)}L{place(HIGH, 0)}M{place(0, -0.4)}L{place(0, 3)}" '
        'stroke="currentColor" stroke-opacity="0.3" fill="none"/>'
    ]
    for tick in (-4, -2, 2):
        across, down = place(tick, 0).split(",")
        below = 27 if tick < 0 else 15  # SiLU dips under the axis
        parts.append(f'<text x="{across}" y="{down}" dy="{below}" text-anchor="middle">{tick}</text>')
    for tick in (1, 2):
        across, down = place(0, tick).split(",")
        parts.append(f'<text x="{across}" y="{down}" dx="-6" dy="4" text-anchor="end">{tick}</text>')
    for i, ((name, colour, dashes), y) in enumerate(zip(CURVES, functions, strict=True)):
        points = " ".join(place(a, b) for a, b in zip(np.array(x), np.array(y), strict=True))
        style = f'fill="none" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dashes}"'
        parts.append(f'<polyline points="{points}" {style}/>')
        parts.append(f'<path d="M34 {24 + 18 * i}h26" {style}/><text x="66" y="{28 + 18 * i}">{name}</text>')
    print(
        '<svg style="max-width: 520px" viewBox="0 0 360 180" fill="currentColor" font-size="11" '
        'role="img"><title>SiLU, ReLU and the sigmoid from -5 to 3</title>'
        "<desc>SiLU follows ReLU far from zero, is smooth at zero, and dips to -0.28 near x = -1.28.</desc>"
        + "".join(parts)
        + "</svg>"
    )


if __name__ == "__main__":
    main()
