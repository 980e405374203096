"""A chart of one cost against another, a labelled point a setting, as SVG text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.sax.saxutils import escape

from scripts.chart import FONT

WIDTH, HEIGHT = 480, 360
LEFT, RIGHT, TOP, BOTTOM = 66, 30, 24, 52
COLORS = (
    "<style>svg{color:#222;background:#fff}"
    "@media(prefers-color-scheme:dark){svg{color:#ddd;background:#16181c}}</style>"
)


@dataclass(frozen=True)
class Point:
    """A setting and its two costs, both positive."""

    name: str
    x: float
    y: float


def trade_off_chart(
    title: str, x_name: str, y_name: str, points: Sequence[Point], standalone: bool = True
) -> str:
    """Points joined in their order, on logarithmic axes; everything in `currentColor`.

    Args:
        title: of the whole chart.
        x_name: what the horizontal axis is, with its unit.
        y_name: what the vertical axis is, with its unit.
        points: at least one.
        standalone: for a file of its own, which must choose colours and font; in a page they are the page's.

    Raises:
        ValueError: there is no point, or one that a logarithm cannot place.
    """
    if not points or any(not (point.x > 0 and point.y > 0) for point in points):
        raise ValueError("a trade-off needs at least one point, and each point two costs above 0")
    x_of = axis([point.x for point in points], LEFT, WIDTH - RIGHT)
    y_of = axis([point.y for point in points], HEIGHT - BOTTOM, TOP)
    path = " ".join(f"{x_of(point.x):.1f},{y_of(point.y):.1f}" for point in points)
    marks = [
        *frame(x_name, y_name),
        *(x_tick(x_of(value), value) for value in ticks([point.x for point in points])),
        *(y_tick(y_of(value), value) for value in ticks([point.y for point in points])),
        f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-opacity="0.45"/>',
        *(dot(x_of(point.x), y_of(point.y), point.name) for point in points),
    ]
    values = "; ".join(f"{point.name}: {point.x:.3g} and {point.y:.3g}" for point in points)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'style="max-width:36em" {FONT if standalone else ""} font-size="14" fill="currentColor">\n'
        f"<title>{escape(title)}</title>\n"
        f"<desc>{escape(f'{x_name} and {y_name}, by setting: {values}')}</desc>\n"
        f"{COLORS if standalone else ''}\n" + "\n".join(marks) + "\n</svg>\n"
    )


def axis(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """Where a value lies, the decimal logarithms of all spread with some room at both ends."""
    low, high = log10(min(values)), log10(max(values))
    room = 0.12 * (high - low) or 0.5
    low, high = low - room, high + room
    return lambda value: start + (end - start) * (log10(value) - low) / (high - low)


def ticks(values: Sequence[float]) -> list[float]:
    """The numbers 1, 2 and 5 times a power of ten between the smallest and the largest value."""
    low, high = min(values), max(values)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    return [step * 10**power for power in powers for step in (1, 2, 5) if low <= step * 10**power <= high]


def frame(x_name: str, y_name: str) -> list[str]:
    """Both axes and their names."""
    bottom, middle = HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2
    return [
        f'<path d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="currentColor"/>',
        label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_name),
        f'<text x="0" y="0" text-anchor="middle" transform="translate(16 {middle:.1f}) rotate(-90)">'
        f"{escape(y_name)}</text>",
    ]


def x_tick(x: float, value: float) -> str:
    """A number below the horizontal axis."""
    bottom = HEIGHT - BOTTOM
    return f'<path d="M{x:.1f} {bottom}v5" stroke="currentColor"/>' + label(x, bottom + 19, f"{value:g}")


def y_tick(y: float, value: float) -> str:
    """A number beside the vertical axis."""
    return f'<path d="M{LEFT} {y:.1f}h-5" stroke="currentColor"/>' + label(
        LEFT - 8, y + 5, f"{value:g}", "end"
    )


def dot(x: float, y: float, name: str) -> str:
    """A point with its name above it, to the right."""
    circle = f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    return circle + label(x + 6, y - 7, name, "start")


def label(x: float, y: float, content: str, anchor: str = "middle") -> str:
    """One line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'
