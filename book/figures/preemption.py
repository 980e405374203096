"""Requests in a pool that reserves all they may need, and in one that preempts, printed as an SVG."""

from dataclasses import dataclass

from tiny_llm_ref import BlockManager, ScheduledTokens, Scheduler, SchedulerConfig, Sequence

ORANGE = "#d97a1f"
JOBS = ((9, 12), (6, 14), (10, 9), (5, 8))  # tokens of prompt and answer
NUM_BLOCKS, BLOCK_SIZE, BUDGET = 12, 3, 12
LEFT, STEP, ROW = 18, 9.2, 17


@dataclass(frozen=True)
class Cell:
    """What a step computes of a request; `is_again` if some of it was computed before."""

    entry: ScheduledTokens
    is_again: bool
    is_prefill: bool


@dataclass(frozen=True)
class Run:
    """The cells of each step by request, and the blocks in use while it is computed."""

    steps: list[dict[int, Cell]]
    num_used: list[int]
    num_preemptions: int


def run(overcommit: bool) -> Run:
    """Serve the requests, which are all there at the start."""
    blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE, overcommit)
    scheduler = Scheduler(SchedulerConfig(BUDGET, len(JOBS)), blocks)
    for id, (prompt, answer) in enumerate(JOBS):
        scheduler.add(Sequence(id, range(prompt), max_num_tokens=prompt + answer))
    sequences = list(scheduler.sequences.values())
    furthest = [0] * len(JOBS)
    result: list[dict[int, Cell]] = []
    num_used = []
    while scheduler.has_work:
        output = scheduler.schedule()
        num_used.append(blocks.num_used_blocks)
        cells = {}
        for entry in output.entries:
            id = entry.sequence.id
            cells[id] = Cell(entry, entry.start < furthest[id], entry.is_prefill)
            furthest[id] = max(furthest[id], entry.end)
        result.append(cells)
        scheduler.complete(output, {entry.sequence.id: 1 for entry in output.final})
        for entry in output.final:
            if len(entry.sequence.generated_ids) == JOBS[entry.sequence.id][1]:
                scheduler.remove(entry.sequence.id)
    return Run(result, num_used, sum(each.num_preemptions for each in sequences))


def draw_cell(cell: Cell, x: float, y: float) -> str:
    """A block for a prompt, an orange one for what is computed again, a dot for a decode."""
    if cell.is_again or cell.is_prefill:
        colour = ORANGE if cell.is_again else "currentColor"
        return f'<rect x="{x:.1f}" y="{y}" width="{STEP - 1:.1f}" height="11" fill="{colour}"/>'
    return f'<circle cx="{x + STEP / 2 - 0.5:.1f}" cy="{y + 5.5}" r="2.4"/>'


def panel(title: str, result: Run, y: float) -> str:
    """Who is computed in which step, and below it the blocks in use."""
    parts = [f'<text x="0" y="{y + 12}" font-weight="600">{title}: {len(result.steps)} steps</text>']
    for id in range(len(JOBS)):
        top = y + 22 + id * ROW
        last = max(step for step, cells in enumerate(result.steps) if id in cells)
        parts.append(f'<text x="2" y="{top + 10}">{id}</text>')
        parts.append(
            f'<path d="M{LEFT} {top + 5.5}H{LEFT + last * STEP:.1f}" stroke="currentColor" '
            'stroke-opacity="0.3"/>'
        )
        parts += [
            draw_cell(cells[id], LEFT + step * STEP, top)
            for step, cells in enumerate(result.steps)
            if id in cells
        ]
    base = y + 22 + len(JOBS) * ROW + 38
    scale = 34 / NUM_BLOCKS
    width = len(result.steps) * STEP
    parts.append(
        f'<rect x="{LEFT}" y="{base - 34}" width="{width:.1f}" height="34" fill="none" stroke="currentColor" '
        'stroke-opacity="0.35"/>'
    )
    parts += [
        f'<rect x="{LEFT + step * STEP:.1f}" y="{base - used * scale:.1f}" width="{STEP - 1:.1f}" '
        f'height="{used * scale:.1f}" fill-opacity="0.35"/>'
        for step, used in enumerate(result.num_used)
    ]
    mean = sum(result.num_used) / len(result.num_used)
    parts.append(
        f'<text x="{LEFT}" y="{base + 13}">blocks in use, {mean:.1f} of {NUM_BLOCKS} on average; '
        f"{result.num_preemptions} preemptions</text>"
    )
    return "".join(parts)


def main() -> None:
    """Print the figure."""
    reserved, overcommitted = run(overcommit=False), run(overcommit=True)
    width = LEFT + STEP * max(len(reserved.steps), len(overcommitted.steps)) + 4
    height = 22 + len(JOBS) * ROW + 38 + 30
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {2 * height - 8}" '
        'fill="currentColor" font-size="11" role="img">'
        "<title>Four requests in a pool that reserves everything, and in one that preempts</title>"
        f"<desc>Reserved at admission, the four requests take {len(reserved.steps)} steps and none is ever "
        f"preempted. Overcommitted, they take {len(overcommitted.steps)} steps; "
        f"{overcommitted.num_preemptions} times a request stands still and is computed again.</desc>"
        f"{panel('Reserved at admission', reserved, 0)}"
        f"{panel('Overcommitted', overcommitted, height)}"
        "</svg>"
    )


if __name__ == "__main__":
    main()
