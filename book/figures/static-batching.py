"""Eight answers of different lengths in three slots: batches that end together, and slots refilled."""

ANSWERS = (4, 11, 6, 9, 3, 7, 5, 8)  # tokens of each answer
NUM_SLOTS = 3
LEFT, STEP, ROW, GAP = 62, 13.5, 26, 6

Bar = tuple[int, int, int, int]
"""Request, slot, first step, number of steps."""


def static_batches() -> list[Bar]:
    """Each batch starts when the whole batch before it has ended."""
    bars: list[Bar] = []
    start = 0
    for first in range(0, len(ANSWERS), NUM_SLOTS):
        batch = ANSWERS[first : first + NUM_SLOTS]
        bars += [(first + slot, slot, start, length) for slot, length in enumerate(batch)]
        start += max(batch)
    return bars


def continuous() -> list[Bar]:
    """Each request takes the slot that is free first."""
    bars: list[Bar] = []
    free_at = [0] * NUM_SLOTS
    for request, length in enumerate(ANSWERS):
        slot = free_at.index(min(free_at))
        bars.append((request, slot, free_at[slot], length))
        free_at[slot] += length
    return bars


def panel(title: str, bars: list[Bar], y: float) -> list[str]:
    """A heading, a row a slot, and the steps in all."""
    steps = max(start + length for _, _, start, length in bars)
    busy = 100 * sum(ANSWERS) / (steps * NUM_SLOTS)
    lines = [
        f'<text x="0" y="{y + 14}" font-weight="bold">{title}: {steps} steps, slots {busy:.0f}% busy</text>'
    ]
    top = y + 24
    for slot in range(NUM_SLOTS):
        row = top + slot * (ROW + GAP)
        lines.append(f'<text x="0" y="{row + 18}">slot {slot}</text>')
        lines.append(
            f'<rect x="{LEFT}" y="{row}" width="{steps * STEP:.1f}" height="{ROW}" fill="none" '
            'stroke="currentColor" stroke-opacity="0.35" stroke-dasharray="3 3"/>'
        )
    for request, slot, start, length in bars:
        row, x, width = top + slot * (ROW + GAP), LEFT + start * STEP, length * STEP - 2
        lines.append(
            f'<rect x="{x + 1:.1f}" y="{row + 1}" width="{width:.1f}" height="{ROW - 2}" fill="currentColor" '
            'fill-opacity="0.16" stroke="currentColor"/>'
        )
        lines.append(
            f'<text x="{x + width / 2 + 1:.1f}" y="{row + 18}" text-anchor="middle">{request}</text>'
        )
    return lines


def figure() -> str:
    """Both panels, to one scale of time."""
    panels = [("One batch after the other", static_batches()), ("Continuous", continuous())]
    height = 24 + NUM_SLOTS * (ROW + GAP) + 14
    body = [line for i, (title, bars) in enumerate(panels) for line in panel(title, bars, i * height)]
    steps = [max(start + length for _, _, start, length in bars) for _, bars in panels]
    width = LEFT + max(steps) * STEP + 4
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {2 * height}" role="img" '
        'style="max-width:36em" '
        'font-size="15" fill="currentColor">\n'
        "<title>Static and continuous batching of the same eight answers</title>\n"
        f"<desc>Three slots over decode steps. In batches that end together the answers take {steps[0]} "
        f"steps, the slots of short answers idle; with slots refilled at once {steps[1]}.</desc>\n"
        + "\n".join(body)
        + "\n</svg>"
    )


if __name__ == "__main__":
    print(figure())
