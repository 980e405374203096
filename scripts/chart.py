"""Charts of what was measured, as SVG text: bars with their spread, lines, runs; for light and dark pages."""

from collections.abc import Iterator, Mapping, Sequence
from math import log2
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

WIDTH, NAME_WIDTH, VALUE_WIDTH = 400, 148, 58
BAR_WIDTH = WIDTH - NAME_WIDTH - VALUE_WIDTH
ROW, HEADING, TITLE = 20, 30, 26
PLOT_HEIGHT, LEFT, BOTTOM = 210, 44, 40
RUN_LEFT = 112
SWEEP_SECONDS, HELD_SECONDS = 9, 3  # of a run that is played again and again
LIGHT = ("#1f2328", "#1a5a96", "#b0500f", "#2f7466", "#7a3e9d", "#8a6d00")  # text, then one for each side
DARK = ("#d5d9de", "#7fb7ee", "#f0a266", "#6fbfae", "#c79bea", "#dcc15a")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4")
Values = Sequence[float]


def bar_chart(title: str, groups: Mapping[str, Mapping[str, Values]]) -> dict[str, Any]:
    """A group of bars for each heading, each group to a scale of its own; a bar for the values of a name."""
    bars = {
        heading: {name: least_median_most(values) for name, values in by_name.items()}
        for heading, by_name in groups.items()
    }
    return {"title": title, "bars": bars}


def line_chart(
    title: str, x_name: str, y_name: str, lines: Mapping[str, Mapping[int, Values]]
) -> dict[str, Any]:
    """A line for each name: the values at each x, which is drawn on a logarithmic axis."""
    series = {
        name: {str(x): least_median_most(values) for x, values in points.items()}
        for name, points in lines.items()
    }
    return {"title": title, "x": x_name, "y": y_name, "lines": series}


def least_median_most(values: Values) -> list[float]:
    """What is drawn of some values; their median is that of all."""
    return [float(f"{value:.4g}") for value in (min(values), median(values), max(values))]


def draw(chart: Mapping[str, Any], colours: str = "both", is_moving: bool = False) -> str:
    """A chart as SVG: medians, and from the least to the most of the values.

    Args:
        chart: of `bar_chart`, `line_chart` or a run, or read from a record.
        colours: "light" or "dark"; "both" for a file that follows its reader's; "page" for those of the page
            that it becomes a part of.
        is_moving: a run is played, slowly, again and again, unless its reader's machine asks for less motion.

    Raises:
        ValueError: `colours` are others.
    """
    kind = next(kind for kind in KINDS if kind in chart)
    parts, height = KINDS[kind](chart)
    if is_moving and kind == "run":
        parts += sweep(chart)
    width = chart.get("width", WIDTH)
    heading = text(0, 14, chart["title"], "title")
    return (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + TITLE:.0f}" '
        f'role="img" style="max-width:{0.085 * width:g}em" font-family="sans-serif" font-size="12">'
        f"<title>{escape(chart['title'])}</title>\n{style(colours)}\n{heading}\n"
        f'<g transform="translate(0 {TITLE})">\n' + "\n".join(parts) + "\n</g>\n</svg>\n"
    )


def style(colours: str) -> str:
    """What colours the classes."""
    if colours == "page":
        return ""
    rules = {"light": rules_of(LIGHT), "dark": rules_of(DARK)}
    rules["both"] = f"{rules['light']}@media(prefers-color-scheme:dark){{{rules['dark']}}}"
    if colours not in rules:
        raise ValueError(f"colours must be light, dark, both or page, got {colours!r}")
    return f"<style>.chart .title{{font-weight:bold}}{rules[colours]}</style>"


def rules_of(colours: Sequence[str]) -> str:
    """CSS for text, axes and sides."""
    fore, *sides = colours
    rules = [f".chart text{{fill:{fore}}}.chart .axis{{stroke:{fore}}}.chart .bar{{fill:{sides[0]}}}"]
    rules += [
        f".chart .side-{i}{{stroke:{colour}}}.chart .mark-{i}{{fill:{colour}}}"
        for i, colour in enumerate(sides)
    ]
    return "".join(rules)


def bars(chart: Mapping[str, Any]) -> tuple[list[str], float]:
    """The elements, and how high they are together."""
    groups: Mapping[str, Mapping[str, Values]] = chart["bars"]
    parts: list[str] = []
    y = 0.0
    for heading, by_name in groups.items():
        parts.append(text(0, y + 16, heading, "title"))
        y += HEADING - 6
        scale = BAR_WIDTH / (max((max(values) for values in by_name.values()), default=0.0) or 1.0)
        for name, values in by_name.items():
            parts += bar(name, values, scale, y)
            y += ROW
        y += 8
    return parts, y


def bar(name: str, values: Values, scale: float, y: float) -> Iterator[str]:
    """A row: the name, a bar to the median, a line from the least to the most, the median in digits."""
    middle, low, high = (scale * value for value in (median(values), min(values), max(values)))
    yield text(0, y + 14, name)
    yield f'<rect class="bar" x="{NAME_WIDTH}" y="{y + 4:.0f}" width="{middle:.1f}" height="{ROW - 8}"/>'
    if high > low:
        yield (
            f'<path class="axis" stroke-width="1.5" d="M{NAME_WIDTH + low:.1f} {y + ROW / 2:.0f}H'
            f'{NAME_WIDTH + high:.1f}m0 -4v8M{NAME_WIDTH + low:.1f} {y + ROW / 2 - 4:.0f}v8"/>'
        )
    yield text(NAME_WIDTH + max(middle, high) + 5, y + 14, shown(median(values)))


def lines(chart: Mapping[str, Any]) -> tuple[list[str], float]:
    """The elements, and how high they are together."""
    series: dict[str, dict[int, Values]] = {
        name: {int(x): values for x, values in points.items()} for name, points in chart["lines"].items()
    }
    positions = sorted({x for points in series.values() for x in points})
    low, high = log2(positions[0]), log2(positions[-1])
    top = 1.08 * max(max(values) for points in series.values() for values in points.values())

    def place(x: int, y: float) -> tuple[float, float]:
        across = (log2(x) - low) / (high - low) if high > low else 0.5
        return LEFT + 14 + across * (WIDTH - LEFT - 34), PLOT_HEIGHT * (1 - y / top)

    parts = legend(list(series))
    start = ROW * len(series) + 22
    inside = [text(0, -8, chart["y"]), *axes(positions, top, place, chart["x"])]
    for i, points in enumerate(series.values()):
        inside += line(i, {x: points[x] for x in sorted(points)}, place)
    parts.append(f'<g transform="translate(0 {start})">' + "\n".join(inside) + "</g>")
    return parts, start + PLOT_HEIGHT + BOTTOM


def legend(names: Sequence[str]) -> list[str]:
    """A row for each line."""
    parts = []
    for i, name in enumerate(names):
        y = ROW * i + 8
        parts += [
            stroke(i, f"M4 {y}h34", DASHES[i % len(DASHES)]),
            dot(i, 21, y, 3.5),
        ]
        parts.append(text(46, y + 4, name))
    return parts


def axes(positions: Sequence[int], top: float, place: Any, x_name: str) -> list[str]:
    """Both axes: numbers at every x, and at round values of y."""
    parts = [f'<path class="axis" fill="none" d="M{LEFT} 0V{PLOT_HEIGHT}H{WIDTH}"/>']
    units = (step * 10.0**power for power in range(-3, 7) for step in (1, 2, 5))
    unit = next(unit for unit in units if 5 * unit >= top)
    for number in range(int(top / unit) + 1):
        y = place(positions[0], number * unit)[1]
        parts.append(f'<path class="axis" stroke-opacity="0.15" d="M{LEFT} {y:.1f}H{WIDTH}"/>')
        parts.append(text(LEFT - 6, y + 4, f"{number * unit:g}", anchor="end"))
    parts += [text(place(x, 0.0)[0], PLOT_HEIGHT + 16, f"{x:,}", anchor="middle") for x in positions]
    return [*parts, text((LEFT + WIDTH) / 2, PLOT_HEIGHT + 34, x_name, anchor="middle")]


def line(index: int, points: Mapping[int, Values], place: Any) -> Iterator[str]:
    """A line through the medians, with a mark and the spread at each."""
    middles = [place(x, median(values)) for x, values in points.items()]
    yield stroke(index, "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in middles), DASHES[index % len(DASHES)])
    for (x, y), (position, values) in zip(middles, points.items(), strict=True):
        low, high = (place(position, value)[1] for value in (min(values), max(values)))
        yield stroke(index, f"M{x:.1f} {low:.1f}V{high:.1f}")
        yield dot(index, x, y, 3.5)


def run(chart: Mapping[str, Any]) -> tuple[list[str], float]:
    """A row for each request: a box for each chunk of its prompt, a dot for each token of its answer."""
    end, bottom = chart["width"] - 10, ROW * len(chart["run"]) + 4
    scale = (end - RUN_LEFT) / (chart["seconds"] or 1.0)
    parts = []
    for i, row in enumerate(chart["run"]):
        y = ROW * i
        parts.append(text(0, y + 14, row["name"]))
        marks = [
            box(RUN_LEFT + scale * start, y + 4, max(scale * (stop - start) - 1, 1))
            for start, stop in row["chunks"]
        ]
        marks += [dot(1, RUN_LEFT + scale * moment, y + 10, 2.6) for moment in row["tokens"]]
        parts.append('<g class="marks">' + "\n".join(marks) + "</g>")
    parts.append(f'<path class="axis" d="M{RUN_LEFT} {bottom}H{end}"/>')
    parts += [box(RUN_LEFT + 90, bottom + 7, 18), text(RUN_LEFT + 114, bottom + 17, "chunk of a prompt")]
    parts += [dot(1, RUN_LEFT + 256, bottom + 13, 3), text(RUN_LEFT + 266, bottom + 17, "token of an answer")]
    parts.append(text(RUN_LEFT, bottom + 17, "0 s"))
    parts.append(text(end, bottom + 17, f"{chart['seconds']:.2f} s", anchor="end"))
    return parts, bottom + 24


def sweep(chart: Mapping[str, Any]) -> list[str]:
    """What uncovers the marks of a run from left to right, as its time passed."""
    end, height = chart["width"] - 10, ROW * len(chart["run"]) + 4
    width, all_seconds = end - RUN_LEFT, SWEEP_SECONDS + HELD_SECONDS
    slower = f"slowed down {SWEEP_SECONDS / (chart['seconds'] or SWEEP_SECONDS):.0f} times"
    times = f'keyTimes="0;{SWEEP_SECONDS / all_seconds};1" dur="{all_seconds}s" repeatCount="indefinite"'
    return [
        "<style>.chart .marks{clip-path:url(#swept)}@media(prefers-reduced-motion:reduce)"
        "{.chart .marks{clip-path:none}.chart .now{display:none}}</style>",
        f'<clipPath id="swept"><rect x="{RUN_LEFT}" width="{width + 10}" height="{height}">'
        f'<animate attributeName="width" values="0;{width};{width + 10}" {times}/></rect></clipPath>',
        f'<path class="axis now" stroke-opacity="0.4" d="M{RUN_LEFT} 0V{height}"><animateTransform '
        f'attributeName="transform" type="translate" values="0;{width};{width}" {times}/></path>',
        text(end, 14 - TITLE, slower, "now", anchor="end"),
    ]


def box(x: float, y: float, width: float) -> str:
    """A box in the colour of the first side."""
    return f'<rect class="mark-0" x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" height="{ROW - 8}"/>'


def dot(index: int, x: float, y: float, radius: float) -> str:
    """A mark in the colour of a side."""
    return f'<circle class="mark-{index % 5}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>'


def stroke(index: int, path: str, dashes: str = "") -> str:
    """A line in the colour of a side."""
    pattern = f' stroke-dasharray="{dashes}"' * bool(dashes)
    return f'<path class="side-{index % 5}" fill="none" stroke-width="2"{pattern} d="{path}"/>'


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    """One line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}" fill="currentColor">'
        f"{escape(content)}</text>"
    )


def shown(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


KINDS = {"bars": bars, "lines": lines, "run": run}
