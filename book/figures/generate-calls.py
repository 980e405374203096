"""What each call of the model computes in a loop without a cache, printed as an SVG."""

NUM_PROMPT, NUM_NEW = 5, 6
CELL, LEFT, TOP = 21, 62, 34


def call(number: int) -> str:
    """One call: prompt tokens, earlier answers computed again, and the token that is sampled."""
    y = TOP + (CELL + 3) * number
    computed = NUM_PROMPT + number
    parts = [f'<text x="6" y="{y + 15}">call {number + 1}</text>']
    for position in range(computed + 1):
        x = LEFT + (CELL + 1) * position
        if position == computed:
            parts.append(
                f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{CELL - 2}" fill="none" '
                'stroke="#d97a1f" stroke-width="2"/>'
            )
            continue
        is_new = number == 0 or position == computed - 1
        parts.append(
            f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill-opacity="{0.6 if is_new else 0.15}"/>'
        )
    parts.append(f'<text x="352" y="{y + 15}" text-anchor="end">{computed}</text>')
    return "".join(parts)


def main() -> None:
    """Print the figure."""
    total = sum(NUM_PROMPT + number for number in range(NUM_NEW))
    needed = NUM_PROMPT + NUM_NEW - 1
    bottom = TOP + (CELL + 3) * NUM_NEW
    print(
        f'<svg style="max-width: 520px" viewBox="0 0 360 {bottom + 24}" fill="currentColor" '
        'font-size="11" role="img">'
        "<title>Six calls of the model for six tokens after a prompt of five</title>"
        f"<desc>Each call computes the whole sequence: 5, 6, 7, 8, 9 and 10 tokens, {total} in all. Only "
        f"{needed} of them are computed for the first time.</desc>"
        f'<text x="{LEFT}" y="20">position 0, 1, 2, …</text>'
        '<text x="352" y="20" text-anchor="end">tokens</text>'
        + "".join(call(number) for number in range(NUM_NEW))
        + f'<text x="352" y="{bottom + 15}" text-anchor="end">{total} computed, {needed} of them new</text>'
        "</svg>"
    )


if __name__ == "__main__":
    main()
