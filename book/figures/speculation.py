"""One step with drafts: what the budget leaves them, which are accepted, and what is kept, as an SVG."""

from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np

from tiny_llm_ref import BlockManager, PromptLookup, ScheduledTokens, Scheduler, SchedulerConfig, Sequence
from tiny_llm_ref.paging.forward_batch import flatten
from tiny_llm_ref.speculation.verification import rows_to_keep, rows_to_verify

QUOTING = "the cat sat on the mat . say it again : the cat"
PLAIN = "a dog"
CHUNK = "once upon a time there was"
FIRST = ("sat", "then")  # what the two answers have got so far
SAID = {0: "on the rug", 1: "ran"}  # what the model says next
BUDGET, THRESHOLD, WANTED = 11, 5, 8
ORANGE = "#d97a1f"
LEFT, WIDTH, GAP = 4, 30, 3
WORDS = sorted({*f"{QUOTING} {PLAIN} {CHUNK}".split(), *FIRST, *" ".join(SAID.values()).split()})


@dataclass(frozen=True)
class Step:
    """A step with its drafts.

    `ungranted` are drafts that found no place; `sampled` has the rows with a sample; `kept` has the rows
    whose sample becomes part of an answer.
    """

    entries: tuple[ScheduledTokens, ...]
    token_ids: list[int]
    ungranted: list[int]
    sampled: list[int]
    kept: dict[int, list[int]]


def ids(text: str) -> list[int]:
    """The token ids of words."""
    return [WORDS.index(word) for word in text.split()]


def run() -> Step:
    """Two answers that decode, and a prompt that comes in chunks."""
    scheduler = Scheduler(SchedulerConfig(64, 3), BlockManager(60, 4))
    sequences = [Sequence(id, ids(text), max_num_tokens=60) for id, text in enumerate((QUOTING, PLAIN))]
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.complete(scheduler.schedule(), {id: WORDS.index(word) for id, word in enumerate(FIRST)})
    scheduler.add(Sequence(2, ids(CHUNK), max_num_tokens=60))
    scheduler.config = SchedulerConfig(BUDGET, 3, THRESHOLD)
    output = scheduler.schedule()
    index = PromptLookup()
    index.extend(sequences[0].token_ids)
    found = index.propose(WANTED)
    granted = scheduler.grant_drafts(output, {0: len(found)})
    drafted = output.with_drafts({0: found[: granted[0]]})
    token_ids, _, starts = flatten(drafted.entries)
    rows = rows_to_verify(drafted.entries, starts)
    said = ids(SAID[0])
    is_accepted = [draft == word for draft, word in zip(found, said, strict=False)]
    is_accepted += [False] * (len(rows) - len(is_accepted))
    kept = {id: [int(rows[i]) for i in each] for id, each in rows_to_keep(drafted.final, is_accepted).items()}
    return Step(drafted.entries, token_ids.tolist(), found[granted[0] :], np.array(rows).tolist(), kept)


def box(x: float, y: float, word: str, style: str) -> str:
    """A word in a frame."""
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="22" rx="3" {style}/>'
        f'<text x="{x + WIDTH / 2}" y="{y + 15}" text-anchor="middle" font-size="10">'
        f"{escape(word)}</text>"
    )


def place(column: int) -> float:
    """The left edge of a column."""
    return LEFT + column * (WIDTH + GAP)


def sample(step: Step, row: int, y: float) -> str:
    """The word sampled after a row: solid if it is kept, a dot if it is thrown away."""
    x = place(row)
    arrow = f'<path d="M{x + WIDTH / 2} {y - 12}v9" stroke="currentColor" stroke-opacity="0.5"/>'
    for id, rows in step.kept.items():
        if row in rows:
            is_draft = row != rows[-1]
            word = SAID[id].split()[rows.index(row)]
            frame = "none" if is_draft else ORANGE
            return arrow + box(x, y, word, f'fill="none" stroke="{frame}" stroke-width="1.5"')
    return arrow + f'<text x="{x + WIDTH / 2}" y="{y + 15}" text-anchor="middle" fill-opacity="0.45">✗</text>'


def batch(step: Step, y: float) -> str:
    """The rows of the forward: own tokens filled, drafts dashed; drafts without a place are pale."""
    parts, column = [], 0
    for entry in step.entries:
        for number in range(entry.num_tokens):
            is_draft = number >= entry.num_tokens - len(entry.draft_ids)
            style = (
                'fill="none" stroke="currentColor" stroke-dasharray="3 2"'
                if is_draft
                else f'fill="currentColor" fill-opacity="{0.22 if entry.is_final else 0.1}"'
            )
            parts.append(box(place(column), y, WORDS[step.token_ids[column]], style))
            column += 1
    return "".join(parts)


def brackets(step: Step, y: float) -> str:
    """Which columns belong to which request."""
    parts, column = [], 0
    for entry, name in zip(step.entries, ("a quoting answer", "another", "a chunk of a prompt"), strict=True):
        left, right = place(column), place(column + entry.num_tokens) - GAP
        parts.append(
            f'<path d="M{left} {y}v-4H{right}v4" fill="none" stroke="currentColor" stroke-opacity="0.5"/>'
            f'<text x="{(left + right) / 2}" y="{y - 9}" text-anchor="middle">{name}</text>'
        )
        column += entry.num_tokens
    return "".join(parts)


def main() -> None:
    """Print the figure."""
    step = run()
    width = place(BUDGET) + 2
    ungranted = " ".join(WORDS[id] for id in step.ungranted)
    answer = " ".join(SAID[0].split()[: len(step.kept[0])])
    num_drafts = len(step.entries[0].draft_ids)
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 148" fill="currentColor" '
        'font-size="11" role="img">'
        "<title>One step with drafts</title>"
        f"<desc>A step with a budget of {BUDGET} tokens. A quoting answer computes its newest token and "
        f"{num_drafts} drafts; {len(step.kept[0]) - 1} are accepted, and the model's own token follows: "
        f"{answer}. Another answer gets one token. Five tokens of a prompt are computed.</desc>"
        f"{brackets(step, 24)}"
        f"{batch(step, 30)}"
        f"{''.join(sample(step, row, 66) for row in step.sampled)}"
        f'<text x="{LEFT}" y="107">the quoting answer gets “{escape(answer)}”:</text>'
        f'<text x="{LEFT}" y="123">{len(step.kept[0]) - 1} accepted drafts and a token of the model</text>'
        f'<text x="{LEFT}" y="140" fill-opacity="0.7">no place in the budget for the drafts '
        f"“{escape(ungranted)}”</text>"
        "</svg>"
    )


if __name__ == "__main__":
    main()
