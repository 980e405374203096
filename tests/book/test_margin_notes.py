"""The notes beside the text: from the glossary, where a page first uses a term, where there is room."""

from pathlib import Path

import pytest

from scripts.book.margin import MOST_NOTES, read_notes
from tests.book.small_books import faults_of, folders_in, page_of

GLOSSARY = """# Glossary

### Key

The vector by which a token is found, of `D` numbers, as [a query](#query) says. More of it.

### Block table

A list.

### Group

In quantization, some weights. In attention, some heads.

### Long one

{long} until the end.
""".format(long="A sentence without an end " * 6)
KEY = "**Key.** The vector by which a token is found, of `D` numbers, as a query says."
LONG = "word " * 60


def page(tmp_path: Path, text: str) -> str:
    (folders_in(tmp_path).src / "glossary.md").write_text(GLOSSARY, encoding="utf-8")
    page = page_of(tmp_path, text)
    assert page.found == []
    return page.rendered


def use(term: str) -> str:
    return f"A [word](../glossary.md#{term}), {LONG}"


def note(text: str) -> str:
    return f'<span class="margin-note" role="note">{text}</span> '


def test_only_short_sentences_with_one_meaning_are_notes() -> None:
    assert read_notes(GLOSSARY) == {"key": KEY, "block-table": "**Block table.** A list."}


def test_a_note_stands_in_front_of_the_paragraph_that_first_uses_a_term(tmp_path: Path) -> None:
    rendered = page(tmp_path, f"# Day\n\n{LONG}\n\n{use('key')}\n\n## Part\n\n{use('key')}")
    assert rendered == f"# Day\n\n{LONG}\n\n{note(KEY)}{use('key')}\n\n## Part\n\n{use('key')}"


def test_between_two_headings_there_is_one_note(tmp_path: Path) -> None:
    both = f"{use('key')}\n\n{use('block-table')}"
    assert page(tmp_path, both) == note(KEY) + both
    rendered = page(tmp_path, f"{use('key')}\n\n{{{{#task 1}}}}\n\n{use('block-table')}")
    assert rendered.count("margin-note") == 2


@pytest.mark.parametrize(
    "text",
    [
        "A [word](../glossary.md#key), too short to be as high as the note.",
        f"- {use('key')}",
        f"| {use('key')} |",
        f"1. {use('key')}",
        f"The vector is called [word](../glossary.md#key). {LONG}",
        f"This is a **[word](../glossary.md#key)**. {LONG}",
        use("group"),
        use("long-one"),
    ],
)
def test_without_room_or_need_there_is_no_note(tmp_path: Path, text: str) -> None:
    assert page(tmp_path, text) == text


def test_a_page_has_few_notes(tmp_path: Path) -> None:
    terms = range(MOST_NOTES + 3)
    glossary = "\n\n".join(f"### Term {n}\n\nA word." for n in terms)
    (folders_in(tmp_path).src / "glossary.md").write_text(glossary, encoding="utf-8")
    text = "\n\n".join(f"## Part {n}\n\n{use(f'term-{n}')}" for n in terms)
    assert page_of(tmp_path, text).rendered.count("margin-note") == MOST_NOTES


def test_a_fault_behind_a_note_keeps_its_line(tmp_path: Path) -> None:
    (folders_in(tmp_path).src / "glossary.md").write_text(GLOSSARY, encoding="utf-8")
    ((line, _),) = faults_of(tmp_path, f"# Day\n\n{use('key')}\n\n`softmx()`")
    assert line == 5
