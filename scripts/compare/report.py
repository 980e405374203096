"""How a comparison looks: a table that grows row by row, and two timelines one under the other."""

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from scripts.compare.batch import CHOSEN_PROMPTS, SETTINGS, BatchComparison, BatchRun
from scripts.compare.costs import Cost, Verdict
from scripts.compare.differences import Difference
from scripts.course import Day, Task
from scripts.run.run_report import in_ms, timeline_rows, timeline_scale, timeline_width, totals
from scripts.sources.files import find_symbol

COLUMNS = (9, 10, 6, 9, 10)  # yours, reference, ratio; yours, reference
WORD_WIDTH = 8
LONGEST_NAME = 24  # of a case, with a space: all that 80 columns leave
MARGIN = 3
FEW = 4
SLOW = 2.0  # times the reference's time or memory: worth a look
STYLES = {"equal": "green", "hole": "dim"}


class Report:
    """Prints rows as they come.

    Args:
        console: as wide as the terminal; colour is its business.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.name_width = min(max(console.width - 56, LONGEST_NAME), 44)

    def line(self, *parts: str | Text, style: str = "") -> None:
        """One line, however long."""
        self.console.print(Text.assemble(*parts, style=style), soft_wrap=True)

    def detail(self, sentence: str, style: str = "") -> None:
        """A sentence below a row, indented; in a terminal over as many lines as it takes."""
        if self.console.is_terminal:
            self.console.print(Padding(Text(sentence, style), (0, 0, 0, MARGIN + 2)))
        else:
            self.line(" " * (MARGIN + 2), sentence, style=style)

    def start_day(self, day: Day) -> None:
        """Its title, and what the columns are."""
        self.line(f"week {day.week} day {day.day}  {day.title}", style="bold")
        left = " " * (MARGIN + self.name_width + WORD_WIDTH)
        groups = f"{'time':>{sum(COLUMNS[:2])}}{'':{COLUMNS[2]}}{'memory':>{sum(COLUMNS[3:])}}"
        self.line(left, groups, style="dim")
        self.line(left, cells("yours", "reference", "", "yours", "reference"), style="dim")

    def not_written(self, names: list[str]) -> None:
        """In the place of a symbol's rows, with the methods that are missing of a class."""
        methods = [name.split(".")[-1] for name in names]
        shown = ", ".join(methods[:FEW]) + (f" and {len(methods) - FEW} more" if len(methods) > FEW else "")
        self.line(f"{'':{MARGIN}}not written yet{': ' if shown else ''}{shown}", style="dim")

    def row(self, verdict: Verdict) -> None:
        """One case, with the difference below."""
        word = verdict.difference.word if verdict.difference else "equal"
        text = Text(f"{'':{MARGIN}}{verdict.case.name:{self.name_width}}")
        text.append(f"{word:{WORD_WIDTH}}", STYLES.get(word, "red"))
        self.line(text, costs(*verdict.costs) if verdict.costs else "")
        if verdict.difference:
            self.detail(verdict.difference.sentence)

    def summary(self, sentence: str, day: Day, task: Task | None) -> None:
        """How many rows are equal, and the command that tests the first task that is not."""
        self.line(f"\n{sentence}")
        if task:
            where = f"--week {day.week} --day {day.day} --task {task.number}"
            self.line(f"its tests say more: pdm run test {where}")

    def start_batch(self) -> None:
        """The title of the whole run, and what it serves."""
        self.line("\na whole run", style="bold")
        slots, chunk = SETTINGS["batch_size"], SETTINGS["prefill_step"]
        self.line(
            f" {len(CHOSEN_PROMPTS)} requests in {slots} slots, prompts in chunks of {chunk} tokens",
            style="dim",
        )

    def batch(self, found: BatchComparison | Difference, filled: list[str]) -> None:
        """The whole run, figure by figure, and both timelines on one scale of time."""
        if filled:
            names = ", ".join(find_symbol(symbol)[1] for symbol in filled)
            self.detail(f"not written yet, and so the reference's: {names}", "dim")
        if isinstance(found, Difference):
            self.detail(found.sentence, "red")
            return
        if found.model_difference:
            self.detail(
                f"your model's logits differ from the reference's, so these answers will: "
                f"{found.model_difference.sentence}; see pdm run compare --week 1 --day 5",
                "yellow",
            )
        self.figures(found)
        seconds = max(found.yours.seconds, found.reference.seconds)
        for name, run in (("yours", found.yours), ("reference", found.reference)):
            self.line(f"\n {name}", style="cyan")
            rows = timeline_rows(run.recorder, self.console, seconds)
            rows.rstrip()
            self.line(rows)
        self.line(timeline_scale(self.console, seconds, timeline_width(self.console)))

    def figures(self, found: BatchComparison) -> None:
        """Both runs' figures side by side, then what became of the answers."""

        def row(name: str, yours: object, reference: object, style: str = "") -> None:
            self.line(f"{'':{MARGIN}}{name:18}", cells(str(yours), str(reference)), style=style)

        row("", "yours", "reference", "dim")
        for name, (yours, reference) in found.counts.items():
            row(name, yours, reference, "" if yours == reference else "red")
        for name, *texts in zip(MEASURED, measured(found.yours), measured(found.reference), strict=True):
            row(name, *texts)
        sentences = [found.yours.failed.sentence] if found.yours.failed else found.answers
        word = "cut short" if found.yours.failed else "differ"
        word = word if sentences else f"equal for all {len(CHOSEN_PROMPTS)} requests"
        self.line(f"{'':{MARGIN}}{'answers':18}   ", Text(word, "red" if sentences else "green"))
        for sentence in sentences:
            self.detail(sentence)


def cells(*texts: str, styles: tuple[str, ...] = ("",) * len(COLUMNS)) -> Text:
    """Texts in the table's columns."""
    triples = zip(texts, COLUMNS, styles, strict=False)
    return Text.assemble(*((f"{text:>{width}}", style) for text, width, style in triples))


def costs(yours: Cost, reference: Cost) -> Text:
    """Time and memory of both, with what is much worse than the reference's in colour."""
    ratio = yours.seconds / max(reference.seconds, 1e-9)
    return cells(
        in_time(yours.seconds),
        in_time(reference.seconds),
        f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.1f}x",
        in_memory(yours.peak_bytes),
        in_memory(reference.peak_bytes),
        styles=(
            *("", "", "yellow" if ratio > SLOW else ""),
            *("yellow" if yours.peak_bytes > SLOW * reference.peak_bytes else "", ""),
        ),
    )


MEASURED = ("longest gap", "time", "memory")


def measured(run: BatchRun) -> tuple[str, str, str]:
    """The figures that vary from run to run, as texts."""
    return in_ms(totals(run.recorder)["longest_itl_s"]), in_time(run.seconds), in_memory(run.peak_bytes)


def in_time(seconds: float) -> str:
    """Seconds, or milliseconds."""
    return three_digits(seconds, "s") if seconds >= 1 else three_digits(seconds * 1e3, "ms")


def in_memory(num_bytes: int) -> str:
    """Megabytes."""
    return three_digits(num_bytes / 1e6, "MB") if num_bytes >= 1e6 else f"{round(num_bytes / 1e6, 3):g} MB"


def three_digits(value: float, unit: str) -> str:
    """A number in a form that fits its column."""
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{decimals}f} {unit}"
