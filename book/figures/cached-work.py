"""Which tokens each call of the model computes, without a cache and with one, printed as an SVG."""

CELL, PROMPT, CALLS = 17, 5, 6
ORANGE = "#d97a1f"


def square(x: float, y: float, is_computed: bool) -> str:
    """A token, filled if the call computes it."""
    look = f'fill="{ORANGE}"' if is_computed else 'fill="none" stroke="currentColor" stroke-opacity="0.45"'
    return f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 3}" height="{CELL - 3}" rx="2" {look}/>'


def panel(y: float, title: str, has_cache: bool) -> str:
    """The calls of one way, a line each."""
    parts, total = [f'<text x="8" y="{y}" font-weight="600">{title}</text>'], 0
    for call in range(CALLS):
        top, length = y + 8 + call * CELL, PROMPT + call
        first = length - 1 if has_cache and call else 0
        total += length - first
        parts.append(f'<text x="8" y="{top + 12}">call {call + 1}</text>')
        parts += [square(56 + CELL * i, top, i >= first) for i in range(length)]
        parts.append(f'<text x="352" y="{top + 12}" text-anchor="end">{length - first}</text>')
    parts.append(f'<text x="352" y="{y}" text-anchor="end">computed: {total}</text>')
    return "".join(parts)


def main() -> None:
    """Print the figure."""
    print(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 270" fill="currentColor" font-size="11" '
        'role="img">'
        "<title>Tokens computed by each call of the model</title>"
        f"<desc>A prompt of {PROMPT} tokens and {CALLS} calls. Without a cache each call computes all tokens "
        "so far. With one, the first call computes the prompt and each later call a single token, while "
        "those before are only read.</desc>"
        + panel(20, "without a cache", has_cache=False)
        + panel(152, "with a cache", has_cache=True)
        + "</svg>"
    )


if __name__ == "__main__":
    main()
