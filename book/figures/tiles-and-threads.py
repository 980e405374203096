"""The threads of a group over their tile of the output, and one step along K, printed as an SVG."""

ORANGE, BLUE = "#d97a1f", "#3b82c4"
UNIT = 4.5  # of an entry
SIDE = 32 * UNIT


def threads() -> str:
    """32 x 32 outputs; the rows of SIMD group 1 and the column of lane 5 stand out."""
    x, y = 28, 52
    parts = [
        f'<text x="8" y="16" font-weight="600">32 &#215; 32 outputs</text>'
        f'<text x="{x}" y="{y - 18}">lane = column</text><text x="{x + 5 * UNIT}" y="{y - 5}">5</text>'
        f'<rect x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" fill="none" stroke="currentColor"/>'
        f'<rect x="{x + 5 * UNIT}" y="{y}" width="{UNIT}" height="{SIDE}" fill="{BLUE}" fill-opacity="0.35"/>'
    ]
    for row in range(1, 32, 8):
        parts.append(
            f'<rect x="{x}" y="{y + row * UNIT}" width="{SIDE}" height="{UNIT}" fill="{ORANGE}" '
            f'fill-opacity="0.35"/>'
            f'<rect x="{x + 5 * UNIT}" y="{y + row * UNIT}" width="{UNIT}" height="{UNIT}"/>'
            f'<text x="{x - 4}" y="{y + row * UNIT + 8}" text-anchor="end">{row}</text>'
        )
    parts.append(
        f'<text x="8" y="{y + SIDE + 18}">SIMD group 1: rows 1, 9, 17, 25</text>'
        f'<text x="8" y="{y + SIDE + 33}">its lane 5: four entries, solid</text>'
    )
    return "".join(parts)


def step() -> str:
    """Both tiles of a step, and where they come from."""
    x, unit = 206, 2.2
    side = 32 * unit
    return (
        f'<text x="{x}" y="16" font-weight="600">One step along K</text>'
        f'<text x="{x}" y="36">x: 32 rows</text>'
        f'<rect x="{x}" y="42" width="144" height="{side:.0f}" fill-opacity="0.06"/>'
        f'<rect x="{x + 36}" y="42" width="{side / 2:.0f}" height="{side:.0f}" fill="{ORANGE}" '
        'fill-opacity="0.6"/>'
        f'<text x="{x}" y="130">weights: 32 columns</text>'
        f'<rect x="{x}" y="136" width="144" height="{side:.0f}" fill-opacity="0.06"/>'
        f'<rect x="{x + 36}" y="136" width="{side / 2:.0f}" height="{side:.0f}" fill="{BLUE}" '
        'fill-opacity="0.6"/>'
        f'<text x="{x}" y="224">K &#8594; 32 at a time</text>'
    )


def rounds() -> str:
    """What the 256 threads do in each step."""
    parts, x = [], 8
    for text, width, is_barrier in (
        ("load", 56, False),
        ("barrier", 62, True),
        ("multiply", 78, False),
        ("barrier", 62, True),
        ("load next", 76, False),
    ):
        look = "none" if is_barrier else "currentColor"
        parts.append(
            f'<rect x="{x}" y="252" width="{width - 4}" height="24" rx="3" fill="{look}" fill-opacity="0.12" '
            f'stroke="currentColor" stroke-width="{1.6 if is_barrier else 0.4}"/>'
            f'<text x="{x + width / 2 - 2}" y="268" text-anchor="middle">{text}</text>'
        )
        x += width + 2
    return "".join(parts)


def main() -> None:
    """Print the figure."""
    print(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 284" fill="currentColor" font-size="11" '
        'role="img">'
        "<title>Tiles and threads of the product with many rows</title>"
        "<desc>A group of 256 threads has 32 by 32 outputs. A lane is a column; SIMD group 1 has rows 1, 9, "
        "17 and 25. In each step a tile of 32 inputs of x and one of the weights are brought into shared "
        "memory: load, barrier, multiply, barrier, load the next.</desc>"
        f"{threads()}{step()}{rounds()}</svg>"
    )


if __name__ == "__main__":
    main()
