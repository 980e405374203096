"""One page: its Markdown with every word and fence replaced, what was wrong with it, and what it holds."""

import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from scripts.book import blocks, counts
from scripts.book.assertions import Assertion, assertions_of
from scripts.book.cuda import RECORD, cuda_table
from scripts.book.execute import Code, check_format, execute
from scripts.book.exhibits import exhibit_block
from scripts.book.fields import fields_table
from scripts.book.figures import chart_block, figure_block, parse_figure, scripts_of
from scripts.book.folders import Folders
from scripts.book.hardware import hardware_table
from scripts.book.inline import Handlers, replace_inline
from scripts.book.life import RECORD as LIFE
from scripts.book.life import life_table
from scripts.book.margin import MarginNotes, read_notes
from scripts.book.maths import render_math
from scripts.book.names import check_code
from scripts.book.outputs import Outputs
from scripts.book.problems import ChapterError, Problem, Problems
from scripts.book.records import Record, load_records, record_file
from scripts.book.segments import Fence, Segment, Text, split_page
from scripts.book.shown import Shown, check_shown, commands_of, python_of, question_of
from scripts.book.symbols import find_symbol, reference_text, starter_text, test_text
from scripts.book.tasks import find_task, task_command, task_head
from scripts.course import ROOT, Day, load_course

GLOSSARY = "glossary.md"
DAY_PAGE = re.compile(r"week-(\d+)/day-(\d+)\.md$")
FOREIGN = re.compile(r"<!--\s*foreign:(?P<names>.*?)-->", re.S)
PLAIN_FENCES = ("text", "cpp", "c", "json", "toml", "diff")


@dataclass
class Page:
    """A chapter on its way to mdBook.

    Args:
        path: within src/.
        source: its Markdown.
        outputs: what its fences print and its figures' scripts draw.
    """

    path: Path
    source: str
    outputs: Outputs
    counts: Counter[str] = field(default_factory=Counter)
    figures: list[str] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    fences: list[Code] = field(default_factory=list)
    checks: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.problems = Problems(self.folders.name(self.folders.src / self.path))

    @property
    def folders(self) -> Folders:
        """Of the book."""
        return self.outputs.folders

    @cached_property
    def day(self) -> Day | None:
        """The day whose chapter it is."""
        match = DAY_PAGE.search(self.path.as_posix())
        return load_course().day(int(match[1]), int(match[2])) if match else None

    @cached_property
    def records(self) -> dict[str, Record]:
        """Of its commands."""
        return load_records(record_file(self.folders.records, self.path))

    @cached_property
    def foreign(self) -> frozenset[str]:
        """Names in backticks that belong to other programs, from comments `<!-- foreign: a b -->`."""
        return frozenset(name for found in FOREIGN.finditer(self.source) for name in found["names"].split())

    @cached_property
    def margin(self) -> MarginNotes:
        """The notes beside its text, from the glossary if the book has one."""
        glossary = self.folders.src / GLOSSARY
        return MarginNotes(read_notes(glossary.read_text(encoding="utf-8") if glossary.is_file() else ""))

    @property
    def to_root(self) -> str:
        """From the page to the top of the book."""
        return "../" * (len(self.path.parts) - 1)

    @property
    def found(self) -> list[Problem]:
        """What is wrong with it, in order."""
        return sorted(self.problems.found)

    def render(self) -> str:
        """Markdown for mdBook; what is wrong is in `problems` and leaves nothing in its place.

        What changes nothing in the text is left to `check`, so that a reader need not wait for it.
        """
        try:
            segments = split_page(self.source)
            assertions = assertions_of(segments)
        except ChapterError as error:
            self.problems.add_error(0, error)
            return ""
        outputs = self.run_python(segments, assertions)
        self.checks += [
            (each.line, functools.partial(self.check_assertion, each, segment, outputs))
            for segment in segments
            if isinstance(segment, Fence)
            for each in assertions.get(segment.line, ())
        ]
        parts = [self.render_segment(segment, outputs) for segment in segments]
        return "\n".join(parts) + scripts_of(self.figures, self.folders, self.to_root)

    def check(self) -> list[Problem]:
        """What is wrong with the format of its Python, its commands and the names in backticks."""
        problems = Problems(self.problems.file)
        for line, text in check_format(self.fences):
            problems.add(line, text)
        for line, check in self.checks:
            try:
                check()
            except ValueError as error:
                problems.add_error(line, error)
        return sorted(problems.found)

    def check_assertion(self, assertion: Assertion, fence: Fence, outputs: dict[int, str]) -> None:
        """Refuse an output that is not as the text says; one that is missing is refused elsewhere."""
        if fence.kind == "python":
            assertion.check(outputs.get(fence.line, ""))
        elif record := self.records.get(commands_of(fence)[-1].command):
            assertion.check(record.output)

    def run_python(
        self, segments: list[Segment], assertions: Mapping[int, list[Assertion]]
    ) -> dict[int, str]:
        """What the fences of a page print, by their lines."""
        fences: dict[int, Code] = {}
        for segment in segments:
            if isinstance(segment, Fence):
                try:
                    code, is_run = python_of(segment)
                except ChapterError as error:
                    self.problems.add_error(segment.line, error)
                    continue
                if code is not None:
                    self.fences.append(code)
                if code is not None and is_run:
                    fences[segment.line] = replace(code, assertions=assertions.get(segment.line, []))
        try:
            outputs, faults = execute(list(fences.values()), self.path, self.outputs)
        except ChapterError as error:
            self.problems.add_error(0, error)
            return dict.fromkeys(fences, "")
        for line, text in faults:
            self.problems.add(line, text)
        self.counts["fences run"] = len(fences)
        return dict(zip(fences, outputs, strict=True))

    def render_segment(self, segment: Segment, outputs: dict[int, str]) -> str:
        """Text or a fence, as Markdown for mdBook."""
        if isinstance(segment, Text):
            return self.render_text(self.margin.add_to(segment.text), segment.line)
        try:
            lines = self.render_fence(segment, outputs).split("\n")
        except ChapterError as error:
            self.problems.add_error(segment.line, error)
            return ""
        return "\n".join(f"{segment.indent}{line}" if line else line for line in lines)

    def render_text(self, text: str, line: int, checks_names: bool = True) -> str:
        """Markdown without fences."""
        handlers = Handlers(
            word=self.render_word,
            math=self.render_math,
            code=self.check_code if checks_names else lambda code, line: None,
            comment=lambda comment, line: None,
            failed=self.problems.add_error,
        )
        return replace_inline(text, line, handlers)

    def render_math(self, tex: str, is_display: bool, line: int) -> str:
        """A formula."""
        self.counts["formulas"] += 1
        return render_math(tex, is_display)

    def check_code(self, code: str, line: int) -> None:
        """Refuse a name, path, command or option in backticks that does not exist."""
        self.checks.append((line, lambda: check_code(code, self.foreign, self.source)))

    def render_word(self, name: str, rest: str, line: int) -> str:
        """What a word becomes."""
        if name == "task":
            task = find_task(rest, self.day)
            assert self.day is not None
            self.tasks.append(task.number)
            return f"{task_head(self.day, task)}\n\n{blocks.command_block(task_command(self.day, task))}\n"
        if name == "figure":
            figure = parse_figure(rest)
            self.figures.append(figure.name)
            self.counts["figures"] += 1
            sentence = self.render_text(figure.sentence, line)
            return figure_block(figure, sentence, self.outputs, self.path)
        if name == "hardware":
            return hardware_table(self.folders.records / "hardware")
        if name == "fields":
            return fields_table(rest.strip())
        if name == "exhibit":
            return exhibit_block(rest.strip(), self.to_root)
        if name == "life":
            return life_table(self.folders.records / LIFE, rest.strip())
        if name == "cuda":
            return cuda_table(self.folders.records / RECORD)
        if name == "counts":
            return counts.counts_tables(self.folders.records / counts.RECORD)
        if name in ("ref", "starter", "test"):
            self.counts["symbols"] += 1
            return self.included(name, rest)
        raise ChapterError(
            f"{{{{#{name}}}}} is no word: there are task, starter, ref, test, figure, hardware, cuda, "
            "counts, exhibit, life and fields"
        )

    def included(self, name: str, dotted: str) -> str:
        """A source with its caption."""
        if name == "test":
            file, text = test_text(dotted)
            caption = blocks.source_caption(file.relative_to(ROOT).as_posix(), dotted.partition(".")[2])
            return f"{caption}\n\n```python\n{text}\n```"
        symbol = find_symbol(dotted)
        text = reference_text(symbol, self.day) if name == "ref" else starter_text(symbol)
        package = "tiny_llm_ref" if name == "ref" else "tiny_llm"
        caption = blocks.source_caption(f"{package}/{symbol.path.as_posix()}", symbol.name)
        return f"{caption}\n\n```{symbol.language}\n{text}\n```"

    def render_fence(self, fence: Fence, outputs: dict[int, str]) -> str:
        """What a fence becomes."""
        if fence.kind == "python":
            output = blocks.output_block(outputs.get(fence.line, ""))
            code = f"```python\n{fence.body}\n```"
            parts = [output, blocks.folded_block(code)] if "folded" in fence.options else [code, output]
            return "\n\n".join(parts) + "\n"
        if fence.kind == "console":
            return "\n\n".join(self.render_command(shown) for shown in self.commands_of(fence)) + "\n"
        if fence.kind == "predict":
            question = self.render_text(question_of(fence).text, fence.line + 1)
            (shown,) = self.commands_of(fence)
            return blocks.predict_block(question, self.record_of(shown), shown.options) + "\n"
        if fence.kind == "check-yourself":
            question = self.render_text(question_of(fence).text, fence.line + 1)
            answer = self.render_text(outputs.get(fence.line, ""), fence.line, checks_names=False)
            self.counts["questions"] += 1
            return blocks.check_block(question, answer) + "\n"
        if fence.kind in PLAIN_FENCES:
            fence.allow()
            return f"```{fence.kind}\n{fence.body}\n```"
        raise ChapterError(
            f"a fence cannot be of kind {fence.kind!r}: there are python, console, predict, check-yourself, "
            f"{', '.join(PLAIN_FENCES)}"
        )

    def commands_of(self, fence: Fence) -> list[Shown]:
        """Of a console or predict fence, which `check` looks at."""
        commands = commands_of(fence)
        self.checks += [(fence.line, functools.partial(check_shown, shown)) for shown in commands]
        return commands

    def render_command(self, shown: Shown) -> str:
        """A command, with its output unless it is bare."""
        if "bare" in shown.options:
            return blocks.command_block(shown.command)
        record = self.record_of(shown)
        block = blocks.recorded_block(record, shown.options)
        if "chart" not in shown.options:
            return block
        if record.chart is None:
            raise ChapterError(f"`{shown.command}` has a record without a chart: record it again", shown.line)
        return f"{chart_block(record.chart)}\n\n{block}"

    def record_of(self, shown: Shown) -> Record:
        """The record of a command; ChapterError without one, or if it ended as the fence does not say."""
        record = self.records.get(shown.command)
        if record is None:
            check_shown(shown)  # what the course has no command for needs no record
            raise ChapterError(
                f"`{shown.command}` has no record: run `pdm run book record {self.path.with_suffix('')}`",
                shown.line,
                is_missing=True,
            )
        if (record.exit_code != 0) != ("fails" in shown.options):
            expected = "another code than 0" if "fails" in shown.options else "0"
            raise ChapterError(
                f"`{shown.command}` was recorded with exit code {record.exit_code}, not {expected}",
                shown.line,
            )
        self.counts["commands"] += 1
        return record
