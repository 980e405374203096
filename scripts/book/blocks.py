"""The HTML of commands, their output and what is revealed on a click.

Each block is one line, so that no blank line within it ends it for Markdown.
"""

import re
from html import escape

from scripts.book.problems import ChapterError
from scripts.book.records import Record

OPTION = re.compile(r"(?<= )(-[\w-]+)")
COLUMNS = re.compile(r"\S {2,}\S.* {2,}\S|[\u2500-\u259f]")  # a row of a table, or a drawing of characters


def one_line(text: str) -> str:
    """Text for the inside of an element, its line ends written as entities."""
    return escape(text, quote=False).replace("\n", "&#10;")


def command_block(command: str) -> str:
    """A command without its output; a line that is too long is not broken within an option."""
    text = OPTION.sub(r'<span class="unbroken">\1</span>', one_line(command))
    code = f'<code class="language-console nohighlight">{text}</code>'
    return f'<pre class="command">{code}</pre>'


def output_block(output: str) -> str:
    """What something printed; nothing if it printed nothing. Columns are kept on a narrow page, too."""
    text = output.strip("\n")
    kind = "output columns" if COLUMNS.search(text) else "output"
    return f'<pre class="{kind}"><samp>{one_line(text)}</samp></pre>' if text else ""


def folded_block(code: str) -> str:
    """Code in Markdown that is read on a click."""
    return f'<details class="folded"><summary>The code</summary>\n\n{code}\n\n</details>'


def recorded_block(record: Record, options: dict[str, str]) -> str:
    """A command, its output shortened as asked, and where it is from."""
    output = shorten(record.output, options)
    caption = f'<p class="recorded">{one_line(record.caption)}</p>'
    return f'<div class="console">{command_block(record.command)}{output_block(output)}{caption}</div>'


def shorten(output: str, options: dict[str, str]) -> str:
    """The first `head` and the last `tail` lines, and how many are left out between them."""
    if not {"head", "tail"} & options.keys():
        return output
    lines = output.split("\n")
    head, tail = (number(options, name) for name in ("head", "tail"))
    num_left_out = len(lines) - head - tail
    if num_left_out <= 1:
        return output
    note = f"… {num_left_out} more lines"
    return "\n".join([*lines[:head], note, *(lines[-tail:] if tail else [])])


def number(options: dict[str, str], name: str) -> int:
    """The value of an option that counts lines, 0 without it."""
    text = options.get(name, "0")
    if not text.isdigit():
        raise ChapterError(f"{name}={text} must be a number of lines")
    return int(text)


def predict_block(question: str, record: Record, options: dict[str, str]) -> str:
    """A question in Markdown, and the recorded output, shortened as asked, on a click."""
    summary = f"<summary>What <code>{one_line(record.command)}</code> prints</summary>"
    answer = f"<details>{summary}{recorded_block(record, options)}</details>"
    return f'<div class="question predict">\n\n{question}\n\n{answer}\n\n</div>'


def check_block(question: str, answer: str) -> str:
    """A question and its answer on a click, both in Markdown."""
    return (
        f'<div class="question check">\n\n{question}\n\n<details><summary>Answer</summary>\n\n'
        f"{answer.strip()}\n\n</details>\n\n</div>"
    )


def source_caption(path: str, name: str) -> str:
    """Where an included source is from, above it."""
    return f'<p class="source"><code>{one_line(path)}</code> {one_line(name)}</p>'
