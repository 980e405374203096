"""By what each scaling multiplies the frequency of each pair, printed as an SVG."""

from collections.abc import Iterator

import numpy as np

from tiny_llm_ref.ops.positional_encoding import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
    rope_frequencies,
)

DIMS, BASE, FACTOR, CONTEXT = 64, 10000.0, 4.0, 2048
SCALINGS: tuple[tuple[str, str, str, RopeScaling], ...] = (
    ("linear", "#3b82c4", "", LinearScaling(FACTOR)),
    ("llama3", "#d97a1f", "6 3", Llama3Scaling(FACTOR, 1.0, 4.0, CONTEXT)),
    ("yarn", "#3f9a5a", "2 2", YarnScaling(FACTOR, CONTEXT, YarnScaling.default_amplitude(FACTOR))),
)
LEFT, RIGHT, TOP, BOTTOM = 44, 350, 34, 164


def place(pair: int, share: float) -> str:
    """A point of the plot as "x,y"."""
    x = LEFT + (RIGHT - LEFT) * pair / (DIMS // 2 - 1)
    return f"{x:.1f},{BOTTOM - (BOTTOM - TOP) * share:.1f}"


def lines() -> Iterator[str]:
    """Each scaling's line and its entry in the legend."""
    plain = rope_frequencies(DIMS, BASE)
    for i, (name, colour, dashes, scaling) in enumerate(SCALINGS):
        shares = np.array(scaling.frequencies(DIMS, BASE) / plain)
        points = " ".join(place(pair, share) for pair, share in enumerate(shares))
        style = f'fill="none" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dashes}"'
        yield f'<polyline points="{points}" {style}/>'
        yield f'<path d="M{60 + 100 * i} 12h24" {style}/><text x="{90 + 100 * i}" y="16">{name}</text>'


def main() -> None:
    """Print the figure."""
    ticks = "".join(
        f'<text x="{LEFT - 6}" y="{place(0, share).split(",")[1]}" dy="4" text-anchor="end">{share:g}</text>'
        f'<path d="M{place(0, share)}H{RIGHT}" stroke="currentColor" stroke-opacity="0.15"/>'
        for share in (0, 0.25, 0.5, 1)
    ) + "".join(
        f'<text x="{place(pair, 0).split(",")[0]}" y="{BOTTOM + 15}" text-anchor="middle">{pair}</text>'
        for pair in (0, 8, 16, 24, 31)
    )
    print(
        '<svg style="max-width: 520px" viewBox="0 0 360 200" fill="currentColor" font-size="11" '
        'role="img">'
        f"<title>What linear, llama3 and yarn scaling by {FACTOR:g} do to each pair's frequency</title>"
        "<desc>Linear scaling divides every frequency by the factor. Llama3 and yarn keep the fast pairs on "
        "the left, divide the slow pairs on the right, and go over from one to the other between.</desc>"
        f'{ticks}{"".join(lines())}<text x="{(LEFT + RIGHT) / 2}" y="196" text-anchor="middle">'
        "pair, fastest first</text></svg>"
    )


if __name__ == "__main__":
    main()
