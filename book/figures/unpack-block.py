"""One block of 4-bit weights unpacked with 4 lanes, and x in the same order, printed as an SVG."""

ORANGE, BLUE = "#d97a1f", "#3b82c4"


def cells(x: float, y: float, width: float, texts: list[str], colours: list[str]) -> str:
    """Fields side by side."""
    return "".join(
        f'<rect x="{x + width * i}" y="{y}" width="{width - 2}" height="22" rx="2" fill="{colour}" '
        f'fill-opacity="0.55"/><text x="{x + width * i + width / 2 - 1}" y="{y + 15}" '
        f'text-anchor="middle">{text}</text>'
        for i, (text, colour) in enumerate(zip(texts, colours, strict=True))
    )


def main() -> None:
    """Print the figure."""
    even, odd = [f"w{i}" for i in range(0, 8, 2)], [f"w{i}" for i in range(1, 8, 2)]
    halves = [half for pair in zip(even, odd, strict=True) for half in pair]
    print(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 252" fill="currentColor" font-size="11" '
        'role="img">'
        "<title>Unpacking a block of eight weights of 4 bits</title>"
        "<desc>Four bytes hold weights 0 to 7, two a byte, the lower half first. A mask of 15 gives weights "
        "0 2 4 6, a shift by 4 gives weights 1 3 5 7. x is arranged in the same order, so that vectors of x "
        "and of weights are multiplied lane by lane.</desc>"
        '<text x="8" y="16" font-weight="600">packed: 4 bytes, lower half | upper half</text>'
        + "".join(
            cells(8 + 87 * byte, 24, 42, halves[2 * byte : 2 * byte + 2], [ORANGE, BLUE]) for byte in range(4)
        )
        + '<text x="8" y="76" font-weight="600">load_bytes: 4 lanes, then</text>'
        '<text x="8" y="100">&amp; 15</text>'
        + cells(56, 85, 40, even, [ORANGE] * 4)
        + '<text x="226" y="100">first vector</text><text x="8" y="128">&gt;&gt; 4</text>'
        + cells(56, 113, 40, odd, [BLUE] * 4)
        + '<text x="226" y="128">second vector</text>'
        '<text x="8" y="166" font-weight="600">x, as it lies</text>'
        + cells(8, 174, 43, [f"x{i}" for i in range(8)], [ORANGE, BLUE] * 4)
        + '<text x="8" y="216" font-weight="600">x, arranged once for all columns</text>'
        + cells(8, 224, 43, [f"x{i}" for i in (0, 2, 4, 6, 1, 3, 5, 7)], [ORANGE] * 4 + [BLUE] * 4)
        + "</svg>"
    )


if __name__ == "__main__":
    main()
