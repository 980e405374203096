"""Which lane of a warp takes which word of a column of packed weights, printed as an SVG."""

ORANGE = "#d97a1f"
LANES, WORDS, CODES, GROUP = 32, 48, 8, 64
WIDTH = 9.6


def place(lane: int) -> float:
    """Where a lane is drawn: eight and a gap."""
    return 8 + WIDTH * lane + lane // 8 * 8


def words(step: int, y: float) -> str:
    """The words of one step, over the lanes that read them."""
    last = min(WORDS, (step + 1) * LANES) - 1
    parts = [f'<text x="8" y="{y - 6}">step {step}: words {step * LANES} to {last}</text>']
    for lane in range(LANES):
        word = step * LANES + lane
        if word >= WORDS:
            look = 'fill="none" stroke="currentColor" stroke-opacity="0.35"'
        else:
            is_odd_group = word * CODES // GROUP % 2
            look = f'fill="{ORANGE}" fill-opacity="{0.75 if is_odd_group else 0.35}"'
        parts.append(
            f'<rect x="{place(lane):.1f}" y="{y}" width="{WIDTH - 1.6:.1f}" height="20" rx="1.5" {look}/>'
        )
    return "".join(parts)


def main() -> None:
    """Print the figure."""
    numbers = "".join(
        f'<text x="{place(lane) + 4:.1f}" y="30" text-anchor="middle">{lane}</text>'
        for lane in (0, 8, 16, 24, 31)
    )
    print(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 190" fill="currentColor" font-size="11" '
        'role="img">'
        "<title>The words of a column over the lanes of a warp</title>"
        f"<desc>{WORDS} words over {LANES} lanes. In step 0 lane i reads word i, in step 1 lanes 0 to 15 "
        "read words 32 to 47 and the others none. Eight words share a group. At the end the sums of all "
        "lanes are added up.</desc>"
        '<text x="8" y="14" font-weight="600">lane</text>'
        f"{numbers}{words(0, 56)}{words(1, 106)}"
        '<text x="8" y="148">A shade is a group of 64 weights: 8 words. Outlined: no word.</text>'
        '<text x="8" y="166">Each lane: a sum of its own for each row of x.</text>'
        '<text x="8" y="182" font-weight="600">At the end: the sum over 32 lanes, lane 0 stores it.</text>'
        "</svg>"
    )


if __name__ == "__main__":
    main()
