"""Bar charts as SVG text, readable on a light and on a dark page."""

from collections.abc import Mapping
from xml.sax.saxutils import escape

NAME_WIDTH, BAR_WIDTH, VALUE_WIDTH = 210, 360, 70
ROW_HEIGHT, TITLE_HEIGHT = 20, 34
STYLE = (
    "text{font:13px sans-serif;fill:#222}.bar{fill:#3b6ea8}.title{font-weight:bold}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.bar{fill:#7aa7d9}}"
)


def bar_chart(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """A group of bars for each heading, each group to a scale of its own.

    Args:
        title: of the whole chart.
        groups: values by name, by heading.
    """
    rows: list[str] = [text(0, TITLE_HEIGHT - 14, title, "title")]
    y = TITLE_HEIGHT
    for heading, values in groups.items():
        rows.append(text(0, y + 16, heading, "title"))
        y += ROW_HEIGHT + 4
        largest = max(values.values(), default=0.0) or 1.0
        for name, value in values.items():
            width = BAR_WIDTH * value / largest
            rows.append(text(8, y + 14, name))
            place = f'x="{NAME_WIDTH}" y="{y + 3}" width="{width:.1f}" height="{ROW_HEIGHT - 6}"'
            rows.append(f'<rect class="bar" {place}/>')
            rows.append(text(NAME_WIDTH + width + 6, y + 14, f"{value:.4g}"))
            y += ROW_HEIGHT
        y += 10
    width = NAME_WIDTH + BAR_WIDTH + VALUE_WIDTH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" role="img">'
        f"<style>{STYLE}</style>\n" + "\n".join(rows) + "\n</svg>\n"
    )


def text(x: float, y: float, content: str, kind: str = "") -> str:
    """One line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(content)}</text>'
