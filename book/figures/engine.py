"""The engine that the course builds, each part leading to its day's chapter, printed as an SVG.

On the page of a week, which `week` names, its parts are filled, those built before are tinted, and later ones
outlined. There are two drawings; the width of the column decides which one is shown.
"""

import json
import sys
from html import escape

from scripts.course import load_course
from scripts.engine_drawing import PANELS, TALL, WIDE, Layout, Part, Place, parts_by_day

HEADING, PADDING, GAP = 20, 7, 6
NARROW = 90  # a part below it has its name on two lines
FEWEST = 660  # pixels of the column for the wide drawing
DESCRIPTION = (
    "A request goes from the server to the scheduler, which decides what the next step computes. The model "
    "computes it, with keys and values in blocks, weights and kernels. The next tokens go back to the "
    "scheduler, for the next step, and as text through the server to the client."
)
STYLE = f"""
.engine {{ font-size: 12px; }}
.engine text {{ fill: var(--fg); }}
.engine .panel {{ fill: none; stroke: var(--book-line); }}
.engine :is(.heading, .word) {{ fill: var(--book-faint); font-size: 11px; }}
.engine .way {{ fill: none; stroke: var(--book-faint); }}
.engine .head {{ fill: var(--book-faint); }}
.engine .day {{ font-size: 10.5px; }}
.engine .lit rect {{ fill: var(--book-accent); fill-opacity: 0.16; }}
.engine .now rect {{ fill: var(--book-accent); }}
.engine .now text {{ fill: var(--bg); }}
.engine .later rect {{ fill: transparent; stroke: var(--book-line); stroke-dasharray: 3 3; }}
.engine .later text {{ fill: var(--book-faint); }}
.engine a:is(:hover, :focus-visible) rect {{ stroke: var(--fg); stroke-width: 1.5; stroke-dasharray: none; }}
.engine a:focus {{ outline: none; }}
#figure-engine .drawing {{ container-type: inline-size; }}
@container (max-width: {FEWEST - 1}px) {{ #figure-engine .drawing > .wide {{ display: none; }} }}
@container (min-width: {FEWEST}px) {{ #figure-engine .drawing > .tall {{ display: none; }} }}
"""


def state(part: Part, week: int | None) -> str:
    """How a part is drawn on the page of a week, or of none."""
    if week is None or part.week < week:
        return "lit"
    return "now" if part.week == week else "later"


def cell(part: Part, kind: str, to_root: str, x: float, y: float, width: float, height: float) -> str:
    """A part: the day above its name, all one link."""
    is_narrow = width < NARROW
    lines = part.lines if is_narrow else [part.label]
    top = y + height / 2 - (11 if is_narrow else 4)
    texts = [f'<text class="day" x="{x + 7:g}" y="{top:g}">{part.week}.{part.day}</text>'] + [
        f'<text x="{x + 7:g}" y="{top + 14 * (i + 1):g}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    ]
    return (
        f'<a class="{kind}" href="{to_root}week-{part.week}/day-{part.day}.html">'
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>{" ".join(texts)}</a>'
    )


def cells(parts: tuple[Part, ...], place: Place, week: int | None) -> str:
    """The parts of a panel, which fill it."""
    to_root = "" if week is None else "../"
    num_rows = -(-len(parts) // place.columns)
    width = (place.width - 2 * PADDING - GAP * (place.columns - 1)) / place.columns
    height = (place.height - HEADING - PADDING - GAP * (num_rows - 1)) / num_rows
    return "".join(
        cell(
            part,
            state(part, week),
            to_root,
            round(place.x + PADDING + (width + GAP) * (i % place.columns), 1),
            round(place.y + HEADING + (height + GAP) * (i // place.columns), 1),
            round(width, 1),
            round(height, 1),
        )
        for i, part in enumerate(parts)
    )


def drawing(name: str, layout: Layout, week: int | None, label: str) -> str:
    """One of the two drawings."""
    head = f"engine-{name}-head"
    parts = [
        f'<marker id="{head}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path class="head" d="M0 0L8 4L0 8z"/></marker>'
    ]
    parts += [f'<path class="way" marker-end="url(#{head})" d="{path}"/>' for path in layout.ways]
    parts += [
        f'<path class="way" marker-start="url(#{head})" marker-end="url(#{head})" d="{path}"/>'
        for path in layout.uses
    ]
    parts += [
        f'<text class="word" x="{x}" y="{y}" text-anchor="{anchor}">{word}</text>'
        for x, y, anchor, word in layout.words
    ]
    for panel in PANELS:
        place: Place = getattr(panel, name)
        parts.append(
            f'<rect class="panel" x="{place.x + 0.5}" y="{place.y + 0.5}" width="{place.width - 1}" '
            f'height="{place.height - 1}" rx="7"/>'
            f'<text class="heading" x="{place.x + PADDING + 1}" y="{place.y + 14}">{panel.name}</text>'
            + cells(panel.parts, place, week)
        )
    return (
        f'<svg class="engine {name}" viewBox="0 0 {layout.width} {layout.height}" role="group" '
        f'aria-label="{label}" style="max-width: {layout.width * (1 if name == "wide" else 1.25):g}px">'
        f"<desc>{DESCRIPTION}</desc>{''.join(parts)}</svg>"
    )


def main() -> None:
    """Print the figure."""
    attributes = json.load(sys.stdin)
    week = int(attributes["week"]) if "week" in attributes else None
    course = load_course()
    parts = parts_by_day(course)
    label = "The engine that the course builds"
    if week is not None:
        label += f"; this week: {', '.join(parts[day].label for day in course.week(week))}"
    wide = drawing("wide", WIDE, week, label).replace("<desc>", f"<style>{STYLE}</style><desc>", 1)
    print(wide + drawing("tall", TALL, week, label))


if __name__ == "__main__":
    main()
