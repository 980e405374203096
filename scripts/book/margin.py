"""Notes in the margin of a wide screen: what the glossary says of a term, where a page first uses it."""

import re
from dataclasses import dataclass, field

LONGEST = 140  # characters of a note
MOST_NOTES = 5  # on a page
BESIDE = 3  # a paragraph of that many times a note's characters is at least as high as the note
ENTRY = re.compile(r"^### (?P<term>.+)\n\n(?P<text>.+)$", re.M)
SENTENCE = re.compile(r".+?[.!?](?= |$)")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
TERM = re.compile(
    r"(?<!\*\*)(?<!called )\[[^\]]*\]\((?:\.\./)*glossary\.md#([\w-]+)\)"
)  # not where it is defined
ONE_OF_SEVERAL = re.compile(r"(?:^|\. )(?:In|Of) ")  # "In week 3, ..."
HEADING = re.compile(r"#|\{\{#task")
PROSE = re.compile(r"[\w*`\[$](?!\$|[.)] )")


def read_notes(glossary: str) -> dict[str, str]:
    """A note in Markdown for each entry whose first sentence is short and always true, by the entry's id."""
    notes = {}
    for entry in ENTRY.finditer(glossary):
        sentence = SENTENCE.match(LINK.sub(r"\1", entry["text"]))
        if sentence and not ONE_OF_SEVERAL.search(entry["text"]):
            note = f"**{entry['term']}.** {sentence[0]}"
            if len(note) <= LONGEST:
                notes[re.sub(r"[^\w-]", "", entry["term"].lower().replace(" ", "-"))] = note
    return notes


@dataclass
class MarginNotes:
    """The notes of one page: at most one in each part between two headings, so that none meets another.

    Args:
        notes: that it may have, by the ids of their terms.
    """

    notes: dict[str, str]
    seen: set[str] = field(default_factory=set)
    num_placed: int = 0
    has_room: bool = True

    def add_to(self, text: str) -> str:
        """Markdown without fences, with notes in front of some paragraphs; its lines keep their numbers."""
        return "\n\n".join(self.with_note(block) for block in text.split("\n\n"))

    def with_note(self, block: str) -> str:
        """A block with the note of the first term that the page has not used before, if there is room."""
        new = [term for term in dict.fromkeys(TERM.findall(block)) if term not in self.seen]
        self.seen.update(new)
        if HEADING.match(block.lstrip("\n")):
            self.has_room = True
        if not self.has_room or self.num_placed == MOST_NOTES or not PROSE.match(block.lstrip("\n")):
            return block
        length = len(LINK.sub(r"\1", block))
        note = next(
            (self.notes[term] for term in new if BESIDE * len(self.notes.get(term, block)) <= length), ""
        )
        if not note:
            return block
        self.has_room = False
        self.num_placed += 1
        start = len(block) - len(block.lstrip("\n"))
        return f'{block[:start]}<span class="margin-note" role="note">{note}</span> {block[start:]}'
