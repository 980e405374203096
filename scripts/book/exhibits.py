"""An exhibit of `pdm run museum` on a page: the fault, the report, and the tests that catch it."""

from scripts.book.problems import ChapterError
from scripts.museum.exhibits import find_exhibit


def exhibit_block(name: str, to_root: str) -> str:
    """Markdown for an exhibit; ChapterError if there is none of that name."""
    try:
        exhibit = find_exhibit(name)
    except ValueError as error:
        raise ChapterError(str(error)) from None
    solution, day = exhibit.solution, exhibit.solution.day
    fault = "\n".join(exhibit.fault)
    return (
        f"`{solution.symbol}`:\n\n```diff\n{fault}\n```\n\n"
        f"Seen in [{exhibit.link_text}]({solution.seen_in}). The tests of "
        f"[day {day.week}.{day.day}]({to_root}week-{day.week}/day-{day.day}.md), task {solution.task}, catch "
        f"it. Try it: `pdm run museum {name}`\n"
    )
