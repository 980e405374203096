"""Read the King James text, split it into training and held-out chapters, and list its words.

The text comes from the `bible` command of the Debian packages bible-kjv and bible-kjv-text.
"""

from __future__ import annotations

import random
import re
import subprocess
from dataclasses import dataclass

END_OF_TEXT = "<|endoftext|>"
SPLIT_SEED = 1611
HELD_OUT_SHARE = 0.02


@dataclass(frozen=True)
class Chapter:
    """One chapter: its name, for example "Ge1", and its verses in order."""

    name: str
    verses: list[str]


def read_chapters() -> list[Chapter]:
    """Read the whole text; the command prints one verse a line after its reference."""
    command = ["bible", "-f", "gen1:1-rev22:21"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    chapters: dict[str, list[str]] = {}
    for line in output.splitlines():
        match = re.fullmatch(r"(\d?[A-Za-z]+\d+):\d+ (.+)", line.strip())
        if match is None:
            raise ValueError(f"not a verse: {line!r}")
        chapters.setdefault(match[1], []).append(" ".join(match[2].split()))
    return [Chapter(name, verses) for name, verses in chapters.items()]


def split_chapters(chapters: list[Chapter]) -> tuple[list[Chapter], list[Chapter]]:
    """Return the training chapters and the held-out chapters."""
    count = round(len(chapters) * HELD_OUT_SHARE)
    held_out = set(random.Random(SPLIT_SEED).sample(range(len(chapters)), count))
    training = [chapter for i, chapter in enumerate(chapters) if i not in held_out]
    return training, [chapters[i] for i in sorted(held_out)]


def plain_document(verses: list[str]) -> str:
    """Join verses, one on a line, and mark the end of the chapter."""
    return "\n".join(verses) + END_OF_TEXT


def cut_rows(ids: list[int], length: int) -> list[list[int]]:
    """Cut a document into rows of at most length + 1 tokens that share one token with the row before."""
    return [ids[start : start + length + 1] for start in range(0, len(ids) - 1, length)]


def words_of(text: str) -> list[str]:
    """Return the words of a text, lower-cased and without punctuation around them."""
    return re.findall(r"\w+(?:['-]\w+)*", text.lower())


def word_list(chapters: list[Chapter]) -> list[str]:
    """Return the sorted distinct words of the whole text."""
    return sorted({word for chapter in chapters for verse in chapter.verses for word in words_of(verse)})
