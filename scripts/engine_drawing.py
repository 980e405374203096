"""The engine that the course builds: its parts, the day that builds each, and where a drawing has them."""

from dataclasses import dataclass

from scripts.course import Course, Day

SOFT_HYPHEN = "\u00ad"


@dataclass(frozen=True)
class Part:
    """What a day adds to the engine; a soft hyphen in the name is where a narrow drawing breaks it."""

    week: int
    day: int
    name: str

    @property
    def label(self) -> str:
        """The name on one line."""
        return self.name.replace(SOFT_HYPHEN, "")

    @property
    def lines(self) -> list[str]:
        """The name on two lines, if it can be broken."""
        first, hyphen, second = self.name.partition(SOFT_HYPHEN)
        return [first + "-", second] if hyphen else self.name.rsplit(" ", 1)


@dataclass(frozen=True)
class Place:
    """Where a panel is drawn, and how many parts it has side by side."""

    x: int
    y: int
    width: int
    height: int
    columns: int


@dataclass(frozen=True)
class Panel:
    """Parts that belong together, and their place in each drawing."""

    name: str
    parts: tuple[Part, ...]
    wide: Place
    tall: Place


@dataclass(frozen=True)
class Layout:
    """A drawing's size and what it has beside the panels.

    Attributes:
        ways: paths of SVG along which requests and tokens go, with an arrow at the end.
        uses: paths between the model and what it works with, with an arrow at both ends.
        words: x, y, which end of the word is there, and the word.
    """

    width: int
    height: int
    ways: tuple[str, ...]
    uses: tuple[str, ...]
    words: tuple[tuple[int, int, str, str], ...]


PANELS = (
    Panel(
        "server",
        (Part(3, 7, "server"), Part(1, 6, "text and tokens"), Part(4, 4, "cache events")),
        wide=Place(147, 0, 442, 70, 3),
        tall=Place(0, 32, 342, 70, 3),
    ),
    Panel(
        "scheduler",
        (
            Part(2, 6, "batching"),
            Part(2, 7, "prompt chunks"),
            Part(3, 1, "token budget"),
            Part(3, 5, "preemption"),
        ),
        wide=Place(147, 98, 442, 70, 4),
        tall=Place(0, 128, 342, 84, 4),
    ),
    Panel(
        "keys and values",
        (
            Part(2, 1, "KV cache"),
            Part(3, 2, "paged blocks"),
            Part(3, 4, "prefix cache"),
            Part(4, 1, "quantized KV"),
        ),
        wide=Place(0, 196, 118, 215, 1),
        tall=Place(0, 238, 160, 144, 2),
    ),
    Panel(
        "weights, kernels",
        (
            Part(2, 2, "4-bit weights"),
            Part(2, 4, f"Flash{SOFT_HYPHEN}Attention"),
            Part(2, 3, "matmul kernel"),
            Part(2, 5, "flash kernel"),
        ),
        wide=Place(147, 341, 442, 70, 4),
        tall=Place(182, 238, 160, 144, 2),
    ),
    Panel(
        "model",
        (
            Part(1, 1, "attention"),
            Part(1, 2, "RoPE"),
            Part(1, 3, "grouped heads"),
            Part(1, 4, "norm and MLP"),
            Part(1, 5, "Qwen3 model"),
            Part(3, 3, "ragged batch"),
            Part(4, 2, "experts"),
            Part(4, 3, "processes"),
        ),
        wide=Place(147, 196, 442, 119, 4),
        tall=Place(0, 408, 342, 144, 4),
    ),
    Panel(
        "next token",
        (Part(1, 7, "sampler"), Part(3, 6, "speculation"), Part(3, 8, "grammar masks")),
        wide=Place(618, 196, 118, 215, 1),
        tall=Place(0, 578, 342, 70, 3),
    ),
)
WIDE = Layout(
    width=736,
    height=412,
    ways=(
        "M86 35H145",
        "M590 35H649",
        "M258 71V96",
        "M478 97V72",
        "M146 133H59V194",
        "M368 169V194",
        "M590 254H616",
        "M677 195V133H591",
    ),
    uses=("M120 254H145", "M368 317V339"),
    words=(
        (59, 39, "middle", "request"),
        (677, 39, "middle", "answer"),
        (101, 127, "middle", "which blocks"),
        (635, 127, "middle", "the next step"),
    ),
)
TALL = Layout(
    width=360,
    height=649,
    ways=(
        "M85 18V30",
        "M257 31V19",
        "M85 103V126",
        "M257 127V104",
        "M80 213V236",
        "M171 213V406",
        "M171 553V576",
        "M343 613H354V170H344",
    ),
    uses=("M80 384V406", "M262 384V406"),
    words=((85, 12, "middle", "request"), (257, 12, "middle", "answer")),
)


def parts_by_day(course: Course) -> dict[Day, Part]:
    """The part that each day builds, in the order of the course.

    Raises:
        ValueError: a part names a day that the course does not have, or a day has no part, or several.
    """
    found: dict[Day, Part] = {}
    for part in (part for panel in PANELS for part in panel.parts):
        day = course.day(part.week, part.day)
        if day in found:
            raise ValueError(f"day {part.week}.{part.day} has two parts: {found[day].label} and {part.label}")
        found[day] = part
    for day in course.days:
        if day not in found:
            raise ValueError(
                f"day {day.week}.{day.day} has no part: give it one in scripts/engine_drawing.py"
            )
    return {day: found[day] for day in course.days}
