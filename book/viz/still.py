"""The still fallback of a figure: the figure's own script draws it, in V8 with a stand-in for the page."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from py_mini_racer import MiniRacer

FOLDER = Path(__file__).parent
WIDTH = 720  # pixels; narrower pages shrink it


def scripts(figure: str) -> list[Path]:
    """The files that a page with this figure loads, in their order."""
    shared = [
        path for folder in ("twins", "data", "parts") for path in sorted((FOLDER / folder).glob("*.js"))
    ]
    return [FOLDER / "common.js", *shared, FOLDER / f"{figure}.js"]


def still(figure: str, attributes: Mapping[str, str]) -> str:
    """An SVG of the figure as it is before anybody plays with it.

    Raises:
        ValueError: an attribute makes no sense; the sentence names it.
    """
    page = MiniRacer()
    for path in [FOLDER / "still.js", *scripts(figure)]:
        page.eval(path.read_text(encoding="utf-8"))
    drawn = page.execute(f"still({json.dumps(figure)}, {json.dumps(dict(attributes))}, {WIDTH})")
    if "error" in drawn:
        raise ValueError(f"{figure}: {drawn['error']}")
    return str(drawn["svg"])


def main(figure: str) -> None:
    """Read attributes as a JSON object from standard input, print the SVG."""
    try:
        print(still(figure, json.load(sys.stdin)))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
