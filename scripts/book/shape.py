"""The shape of the book: chapters for all days, words for all tasks, fixed headings, a sitting's length."""

import re

from scripts.book.page import Page
from scripts.book.problems import Problem
from scripts.book.segments import Text, split_page
from scripts.course import load_course

FIRST_WORDS, LAST_WORDS = 900, 2500
FIXED_HEADINGS = (
    "## Predict first",
    "## Check yourself",
    "## What it gained",
    "### What this does not show",
    "## Readings",
)
NUM_QUESTIONS = 3
ENTRY = re.compile(r"\[(?P<title>[^\]]*)\]\((?P<path>[^)]*)\)")


def summary_entries(summary: str) -> list[tuple[int, str, str]]:
    """Line, title and path of each page that SUMMARY.md names."""
    return [
        (number, match["title"], match["path"].removeprefix("./"))
        for number, line in enumerate(summary.split("\n"), start=1)
        for match in ENTRY.finditer(line)
    ]


def missing_days(summary: str, file: str) -> list[Problem]:
    """Days of course/course.toml that SUMMARY.md does not name."""
    paths = {path for _, _, path in summary_entries(summary)}
    days = [f"week-{day.week}/day-{day.day}.md" for day in load_course().days]
    return [
        Problem(file, 0, f"course/course.toml has a day whose chapter is not named here: {path}")
        for path in days
        if path not in paths
    ]


def shape_of(page: Page) -> list[Problem]:
    """What a day's chapter lacks; nothing for another page."""
    if page.day is None:
        return []
    problems = []
    wanted = [task.number for task in page.day.tasks]
    if page.tasks != wanted:
        words = ", ".join(f"{{{{#task {number}}}}}" for number in wanted)
        problems.append(f"the page must have {words}, once each and in this order; it has {page.tasks}")
    headings = [line.rstrip() for _, line in headings_of(page.source)]
    found = [line for line in headings if line in FIXED_HEADINGS]
    if found != list(FIXED_HEADINGS):
        problems.append(
            f"the last headings must be {', '.join(FIXED_HEADINGS)}, in this order; found {found}"
        )
    if page.counts["questions"] != NUM_QUESTIONS:
        problems.append(f"{NUM_QUESTIONS} check-yourself fences are needed, found {page.counts['questions']}")
    if page.counts["figures"] < 1:
        problems.append("a day needs a figure")
    num_words = count_words(page.source)
    if not FIRST_WORDS <= num_words <= LAST_WORDS:
        problems.append(f"{num_words} words of prose: a day has {FIRST_WORDS} to {LAST_WORDS}")
    return [Problem(page.problems.file, 0, text) for text in problems]


def headings_of(source: str) -> list[tuple[int, str]]:
    """Line and text of each heading of a page."""
    return [
        (segment.line + i, line)
        for segment in split_page(source)
        if isinstance(segment, Text)
        for i, line in enumerate(segment.text.split("\n"))
        if line.startswith("#")
    ]


def count_words(source: str) -> int:
    """Words of prose: no fences, headings, comments or words of the preprocessor; a formula counts as one."""
    text = "\n".join(segment.text for segment in split_page(source) if isinstance(segment, Text))
    text = re.sub(r"<!--.*?-->|\{\{#.*?\}\}|<[^>]*>|^#[^\n]*", " ", text, flags=re.S | re.M)
    text = re.sub(r"\$\$.+?\$\$|\$\S.*?\$", " formula ", text, flags=re.S)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return len(re.findall(r"[^\W_][\w'.-]*", text))


def count_words_in_tasks(source: str) -> int:
    """Those of the prose that stand in tasks: below a `{{#task}}`, up to the next heading."""
    parts = re.split(r"^(\{\{#task \d+\}\}|## .*)$", source, flags=re.M)
    return sum(
        count_words(text) for head, text in zip(parts[1::2], parts[2::2], strict=True) if head[0] == "{"
    )
