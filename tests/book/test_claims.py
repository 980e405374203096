"""What a page says of a figure is what its reader sees, at both ends of each slider that it speaks of."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest
from py_mini_racer import MiniRacer

from tests.book.figure_pages import integers
from tests.book.played import PlayedFigure, load_figures, page_text

TTFT_ABOVE, TTFT_BELOW, GAP_ABOVE, GAP_BELOW = range(4, 8)  # columns of a timeline's table


@dataclass(frozen=True)
class Claim:
    """A page, its figure, words of the page, and whether they hold for the figure as the page opens it."""

    page: str
    figure: str
    says: str
    holds: Callable[[PlayedFigure], bool]


def rises(values: list[float]) -> bool:
    return all(a < b for a, b in pairwise(values))


def never_falls(values: list[float]) -> bool:
    return values[0] < values[-1] and all(a <= b for a, b in pairwise(values))


def longest(figure: PlayedFigure, column: int) -> float:
    return max(figure.column(column))


# ---- timelines


def two_stop(figure: PlayedFigure) -> bool:
    gaps = figure.column(GAP_BELOW)
    return [gap > 2 * max(gaps[2:]) for gap in gaps] == [True, True, False, False]


def later(figure: PlayedFigure) -> bool:
    chunks, whole = figure.column(TTFT_ABOVE), figure.column(TTFT_BELOW)
    return [round(a / b - 1, 1) for a, b in zip(chunks, whole, strict=True)][2:] == [0.4, 0.4]


def same_at_the_right_end(figure: PlayedFigure) -> bool:
    *_, _ = figure.each_position("chunk")
    return all(
        figure.column(above) == figure.column(below)
        for above, below in ((TTFT_ABOVE, TTFT_BELOW), (GAP_ABOVE, GAP_BELOW))
    )


def smaller_chunks(figure: PlayedFigure) -> bool:
    seen = [
        (longest(figure, GAP_ABOVE), -integers(figure.summary)[1], -figure.column(TTFT_ABOVE)[2])
        for _ in figure.each_position("chunk")
    ]
    *_, whole = seen
    return all(never_falls([each[i] for each in seen if each != whole]) for i in range(3))


def stands_still(figure: PlayedFigure) -> bool:
    is_early = figure.column(TTFT_ABOVE)[3] < figure.column(TTFT_BELOW)[3]
    gap = figure.column(GAP_ABOVE)[3]
    is_longest = gap == longest(figure, GAP_ABOVE)
    return (
        is_early and is_longest and max(figure.sweep("budget", lambda: figure.column(GAP_BELOW)[3])) < gap / 2
    )


# ---- the roofline


def intensities(figure: PlayedFigure) -> tuple[float, float]:
    """Operations per byte of the decode and of the chunk."""
    decode, prefill = figure.column(3)
    return decode, prefill


def slope_and_roof(figure: PlayedFigure) -> bool:
    pattern = (
        r"A decode of 1 does [\d.]+, so memory decides.*A chunk of 128 does [\d.]+, so the processor decides"
    )
    return re.search(pattern, figure.summary) is not None


def fewer_bits(figure: PlayedFigure) -> list[float]:
    found = []
    for bits in ("32", "16", "8", "4"):
        figure.move("bits", bits)
        found.append(intensities(figure)[0])
    return found


def along_the_slope(figure: PlayedFigure) -> bool:
    return (
        rises(fewer_bits(figure)) and "A decode of 1 does" in figure.summary and "so memory" in figure.summary
    )


def more_requests(figure: PlayedFigure) -> bool:
    return rises(figure.sweep("batch", lambda: intensities(figure)[0]))


# ---- the sampler


def sure_and_unsure(figure: PlayedFigure) -> bool:
    seen = []
    for prompt in range(int(figure.do("TinyData.sampler.prompts.length"))):
        figure.move("prompt", str(prompt))
        share = float(re.findall(r"goes from ([\d.]+)%", figure.summary)[0])
        seen.append((round(share, -1), integers(figure.summary)[0]))
    shares, kept = zip(*seen, strict=True)
    return shares == (40, 50, 10) and max(kept[:2]) * 10 < kept[2]


# ---- masks and heads


def seen_keys(figure: PlayedFigure) -> list[int]:
    """Of each query the number of keys that it sees, if these are the first ones."""
    found: list[int] = []
    for _ in figure.each_position("query"):
        query, _, first, last, count, *_ = integers(figure.summary)
        assert (query, first, last) == (len(found), 0, count - 1)
        found.append(count)
    return found


def single_query(figure: PlayedFigure) -> bool:
    figure.move("query", 0)
    figure.move("queries", 1)
    return "sees keys 0 to 6: 7 of 7." in figure.summary


def wrong_masks(figure: PlayedFigure) -> bool:
    pairs = []
    for mask in ("right", "off-by-one", "peek", "left", "none"):
        figure.move("mask", mask)
        pairs.append(int(re.findall(r"In all (\d+) of", figure.summary)[0]))
    return pairs[0] not in pairs[1:]


def heads(figure: PlayedFigure) -> bool:
    return figure.sweep("head", lambda: integers(figure.summary.split("Query head")[1])[1]) == [
        0,
        0,
        0,
        1,
        1,
        1,
    ]


# ---- caches and pools


def arrays_fill_up(figure: PlayedFigure) -> bool:
    used = []
    while "were full" not in figure.press():
        used.append(float(integers(figure.summary)[-1]))
    return rises(used) and used[-1] > 85 and integers(figure.summary)[-1] < 60


def last_row_moves(figure: PlayedFigure) -> bool:
    said = figure.press()
    return (
        "Request 0 left slot 0. The last row, slot 2, moved into row 0" in said
        and "slots 2, 1." in figure.summary
    )


def joins_last(figure: PlayedFigure) -> bool:
    figure.press()
    return (
        "in slot 0" in (said := figure.press())
        and "row 2 of the batch" in said
        and "slots 2, 1, 0." in figure.summary
    )


def takes_what_is_free(figure: PlayedFigure) -> bool:
    given_back = re.findall(r"blocks (\d+), (\d+) put back", figure.press())[0]
    figure.press()
    return [row[1] for row in figure.rows] == list(given_back)


def reservations_shrink(figure: PlayedFigure) -> bool:
    figure.press()
    figure.press()
    seen = [integers(figure.summary)[::2][:2]]
    while figure.button == "Decode a token":
        figure.press()
        seen.append(integers(figure.summary)[::2][:2])
    return len({sum(each) for each in seen}) == 1 and seen[0][1] > seen[-1][1] == 0


# ---- prefixes


def share_three(figure: PlayedFigure) -> bool:
    return bool(figure.do("figure.cache.counts.filter((count) => count === 2).length") == 3)


def full_blocks_stay(figure: PlayedFigure) -> bool:
    figure.press()
    figure.press()
    return "3 cached, 7 free. Evicted next" in figure.summary


def third_shares(figure: PlayedFigure) -> str:
    """What is said when the third one comes, after the first two have ended."""
    while "kind" not in figure.button:
        figure.press()
    return figure.press()


def smaller_blocks(figure: PlayedFigure) -> bool:
    found = [
        "nothing of its 13 tokens" not in third_shares(figure) for _ in figure.each_position("block-size")
    ]
    return found == [True, True, False, False, False, False, False]


def smaller_pool(figure: PlayedFigure) -> bool:
    found = ["evicted" in third_shares(figure) for blocks in figure.each_position("blocks") if blocks >= 5]
    return found[:2] == [True, True] and not any(found[2:])


# ---- the engine's thread


def ends(figure: PlayedFigure) -> list[str]:
    return [row[1] for row in figure.rows]


def costs_nobody(figure: PlayedFigure) -> bool:
    figure.move("fault", "step")
    return all(ends(figure) == ["length"] * 3 for _ in figure.each_position("step"))


def costs_itself(figure: PlayedFigure) -> bool:
    found = []
    for request in range(3):
        figure.move("fault", f"request-{request}")
        found.append([end == "error" for end in ends(figure)])
    return found == [[i == j for j in range(3)] for i in range(3)]


def hangs_up(figure: PlayedFigure) -> bool:
    found = [ends(figure) for _ in figure.each_position("gone")]
    return all(end[::2] == ["length", "length"] for end in found) and ["length", "hung up", "length"] in found


CLAIMS = [
    Claim("welcome", "scheduler-timeline", "watch the brackets", smaller_chunks),
    Claim("welcome", "scheduler-timeline", "stops the two answers that are being written", two_stop),
    Claim(
        "welcome",
        "scheduler-timeline",
        "for 690 units of time. In chunks of 64, the longest pause is 115.",
        lambda figure: (round(longest(figure, GAP_BELOW), -1), longest(figure, GAP_ABOVE)) == (690, 115),
    ),
    Claim(
        "welcome", "scheduler-timeline", "comes 40 % later, and so does that of the request behind it", later
    ),
    Claim(
        "welcome",
        "scheduler-timeline",
        "At the right end of the slider, both pictures are the same.",
        same_at_the_right_end,
    ),
    Claim(
        "week-2/day-7",
        "scheduler-timeline",
        "watch the gap shrink while the number of steps and the long prompt's TTFT grow",
        smaller_chunks,
    ),
    Claim(
        "week-2/day-7",
        "attention-mask",
        "the cache, its chunk up to itself, and nothing after that",
        lambda figure: seen_keys(figure) == [4, 5, 6],
    ),
    Claim(
        "week-3/day-1",
        "scheduler-timeline",
        "stands still until a slot is free; below, it waits and then runs through.",
        stands_still,
    ),
    Claim(
        "week-3/day-1",
        "scheduler-timeline",
        "Lower the budget and watch the longest gap below shrink.",
        lambda figure: never_falls(figure.sweep("budget", lambda: longest(figure, GAP_BELOW))),
    ),
    Claim(
        "week-3/day-1",
        "scheduler-timeline",
        "Time counts tokens only",
        lambda figure: integers(figure.summary)[2::5] == [422 + 5 * 23] * 2,
    ),
    Claim(
        "week-1/day-3",
        "attention-mask",
        "the first query already sees five keys",
        lambda figure: seen_keys(figure)[0] == 5,
    ),
    Claim("week-1/day-3", "attention-mask", "A single query sees all of them.", single_query),
    Claim("week-1/day-3", "attention-mask", "count what each query gains or loses", wrong_masks),
    Claim(
        "week-1/day-3",
        "attention-mask",
        "query heads 0, 1 and 2 use key head 0, and 3, 4 and 5 use key head 1",
        heads,
    ),
    Claim(
        "week-1/day-7",
        "sampler",
        "the likeliest token has nearly half of the probability, after the third a tenth",
        sure_and_unsure,
    ),
    Claim("week-2/index", "roofline", "Decode lies on the slope, prefill on the roof.", slope_and_roof),
    Claim(
        "week-2/index",
        "roofline",
        "Let more requests decode together, and watch decode move to the right",
        more_requests,
    ),
    Claim(
        "week-2/index",
        "roofline",
        "fewer bits, behind *More*, do the same",
        lambda figure: rises(fewer_bits(figure)),
    ),
    Claim(
        "week-2/day-2",
        "roofline",
        "Turn the bits from 32 down to 4 and watch decode move to the right along the slope.",
        along_the_slope,
    ),
    Claim("week-2/day-2", "roofline", "Then raise the number of requests that decode", more_requests),
    Claim(
        "week-2/day-1",
        "kv-cache",
        "watch how much of the arrays is in use, and what happens when they are full",
        arrays_fill_up,
    ),
    Claim(
        "week-2/day-6",
        "kv-cache",
        "Let slot 0 leave, and watch which row moves. It keeps the number of its slot",
        last_row_moves,
    ),
    Claim("week-2/day-6", "kv-cache", "it gets slot 0 and the last row", joins_last),
    Claim("week-3/day-2", "block-pool", "its table takes blocks wherever they are free", takes_what_is_free),
    Claim("week-3/day-2", "block-pool", "watch the reservations shrink by as many", reservations_shrink),
    Claim("week-3/day-4", "prefix-cache", "Two prompts have arrived, and share three blocks.", share_three),
    Claim("week-3/day-4", "prefix-cache", "their full blocks stay, numbered in the order", full_blocks_stay),
    Claim(
        "week-3/day-4",
        "prefix-cache",
        "characters with the others, which isn't a full block",
        lambda figure: "nothing of its 13 tokens is there" in third_shares(figure),
    ),
    Claim("week-3/day-4", "prefix-cache", "make the blocks smaller until it shares one", smaller_blocks),
    Claim("week-3/day-4", "prefix-cache", "or the pool until a block is evicted", smaller_pool),
    Claim("week-3/day-7", "engine-thread", "or a client hang up", hangs_up),
    Claim(
        "week-3/day-7",
        "engine-thread",
        "An error that doesn't come back costs nobody an answer.",
        costs_nobody,
    ),
    Claim(
        "week-3/day-7",
        "engine-thread",
        "A request that breaks every step it is in costs only itself",
        costs_itself,
    ),
]


@pytest.fixture(scope="module")
def scripts() -> Iterator[MiniRacer]:
    with MiniRacer() as context:
        load_figures(context)
        yield context


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.says[:40]}")
def test_a_page_says_what_its_figure_shows(scripts: MiniRacer, claim: Claim) -> None:
    assert claim.says in page_text(claim.page)
    assert claim.holds(PlayedFigure(scripts, claim.page, claim.figure))
