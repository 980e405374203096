"""The whole book: what mdBook makes of it, its links, its shape; a fault leaves the last build alone."""

from pathlib import Path

import pytest

from scripts.book.build import build
from scripts.book.links import check_links
from scripts.book.outputs import Outputs
from scripts.book.shape import FIXED_HEADINGS, count_words
from scripts.course import load_course
from tests.book.small_books import DAY, book_in

OVERVIEW = "week-2/index.md"
NUM_OTHER_DAYS = len(load_course().days) - 1


def faults_of_book(tmp_path: Path, pages: dict[str, str]) -> list[tuple[str, int, str]]:
    """File, line and sentence of each fault of a book of which only some days are there."""
    return [
        (problem.file, problem.line, problem.text)
        for problem in build(Outputs(book_in(tmp_path, pages)), is_partial=True).problems
    ]


def test_a_book_is_built_of_what_is_there(tmp_path: Path) -> None:
    folders = book_in(tmp_path, {DAY: "# Day\n\n{{#task 2}}\n\n$x$\n"})
    result = build(Outputs(folders), is_partial=True)
    assert result.problems == []
    assert len(result.notes) == NUM_OTHER_DAYS
    html = (folders.build / "week-2" / "day-7.html").read_text(encoding="utf-8")
    assert '<h2 id="task-2-one-chunk-per-call">' in html
    assert '<span class="katex">' in html
    assert (folders.build / "theme/katex/fonts/KaTeX_Main-Regular.woff2").is_file()


def test_what_is_missing_is_refused_without_partial(tmp_path: Path) -> None:
    result = build(Outputs(book_in(tmp_path, {DAY: "# Day\n"})))
    missing = [problem for problem in result.problems if problem.is_missing]
    assert len(missing) == NUM_OTHER_DAYS
    assert str(missing[0]).startswith("book/src/SUMMARY.md:3: the chapter 'week-1/day-1.md' is not there")


def test_links_lead_to_pages_and_headings(tmp_path: Path) -> None:
    text = (
        "# Day\n\n[a](day-7.md#task-2-one-chunk-per-call), [b](index.md#the-end), [c](#day), [d][d]\n\n"
        "{{#task 2}}\n\n[d]: index.md\n"
    )
    assert faults_of_book(tmp_path, {DAY: text, OVERVIEW: "# Week\n\n## The end\n"}) == []


def test_a_link_to_a_page_that_is_missing_yet_is_only_noted(tmp_path: Path) -> None:
    result = build(Outputs(book_in(tmp_path, {DAY: "# Day\n\n[a](day-6.md)\n"})), is_partial=True)
    assert result.problems == []
    assert "book/src/week-2/day-7.md:3: the link day-6.html leads to no page" in map(str, result.notes)


@pytest.mark.parametrize(
    ("link", "sentence"),
    [
        ("[a](day-8.md)", "the link day-8.html leads to no page"),
        ("[a](../nothing.txt)", "the link ../nothing.txt leads to no page"),
        ("[a](#nothing)", "the link #nothing leads to no heading: week-2/day-7.md has no #nothing"),
        ("[a](index.md#nothing)", "leads to no heading: week-2/index.md has no #nothing"),
        ("[a](http://example.org)", "the link http://example.org is not https"),
        ("![a](https://example.org/a.png)", "the page loads https://example.org/a.png from outside"),
        ("![a](a.png)", "the page loads a.png, which is not there"),
    ],
)
def test_a_dead_link_is_refused_with_its_line(tmp_path: Path, link: str, sentence: str) -> None:
    faults = faults_of_book(tmp_path, {DAY: f"# Day\n\nText\n{link}\n", OVERVIEW: "# Week\n"})
    ((file, line, text),) = faults
    assert sentence in text
    assert (file, line) == (f"book/src/{DAY}", 4)


def test_what_mdbook_only_warns_of_is_refused(tmp_path: Path) -> None:
    ((_, _, text),) = faults_of_book(tmp_path, {DAY: "# Day\n\n<div>\n"})
    assert "unclosed HTML tag" in text


def test_a_fault_leaves_the_last_build_alone(tmp_path: Path) -> None:
    folders = book_in(tmp_path, {DAY: "# Day\n\nFirst.\n"})
    build(Outputs(folders), is_partial=True)
    (folders.src / DAY).write_text("# Day\n\nSecond, `softmx()`.\n", encoding="utf-8")
    assert len(build(Outputs(folders), is_partial=True).problems) == 1
    assert "First." in (folders.build / "week-2" / "day-7.html").read_text(encoding="utf-8")


def test_every_day_and_every_page_is_in_the_summary(tmp_path: Path) -> None:
    folders = book_in(tmp_path, {DAY: "# Day\n"})
    (folders.src / "more.md").write_text("# More\n", encoding="utf-8")
    summary = folders.src / "SUMMARY.md"
    summary.write_text(summary.read_text().replace("- [week-1/day-3.md](week-1/day-3.md)\n", ""))
    texts = [str(problem) for problem in build(Outputs(folders), is_partial=True).problems]
    assert any("chapter is not named here: week-1/day-3.md" in text for text in texts)
    assert "book/src/more.md: SUMMARY.md does not name this page" in texts


def shape_faults(tmp_path: Path, text: str) -> str:
    """What a day lacks, in one text."""
    problems = build(Outputs(book_in(tmp_path, {DAY: text}))).problems
    return "\n".join(problem.text for problem in problems if not problem.is_missing)


def test_a_day_has_its_tasks_headings_questions_figure_and_length(tmp_path: Path) -> None:
    faults = shape_faults(tmp_path, "# Day\n\n{{#task 1}}\n\n## Readings\n\n## Predict first\n")
    assert "must have {{#task 1}}, {{#task 2}}, {{#task 3}}" in faults
    assert "the last headings must be ## Predict first, ## Check yourself" in faults
    assert "3 check-yourself fences are needed, found 0" in faults
    assert "a day needs a figure" in faults
    assert "0 words of prose: a day has 900 to 2500" in faults


def test_a_day_in_its_shape_has_no_fault(tmp_path: Path) -> None:
    (tmp_path / "book" / "figures").mkdir(parents=True)
    (tmp_path / "book" / "figures" / "a.svg").write_text("<svg><title>A</title></svg>")
    tasks = "\n\n".join(f"{{{{#task {number}}}}}" for number in range(1, 8))
    questions = "\n\n".join('```check-yourself\nHow many?\n---\nprint("seven")\n```' for _ in range(3))
    text = f"# Day\n\n{'word ' * 900}\n\n{{{{#figure a | See.}}}}\n\n{tasks}\n\n{questions}\n\n"
    assert shape_faults(tmp_path, text + "\n\n".join(FIXED_HEADINGS) + "\n") == ""


def test_only_prose_is_counted() -> None:
    text = "# No\n\nTwo words, `code` is three.\n\n```text\nnot this\n```\n\n{{#task 2}}\n\n$a + b$ [l](x.md)"
    assert count_words(text) == 7


def test_a_page_that_loads_from_outside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<script src="https://example.org/a.js"></script><p id="x"><p id="x">')
    problems = check_links(tmp_path, {Path("a.md"): ""}, {Path("a.md"): "book/src/a.md"})
    assert [problem.text for problem in problems] == [
        "the page loads https://example.org/a.js from outside",
        "two parts have the id 'x'",
    ]
