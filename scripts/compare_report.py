"""How a comparison looks: a table that grows row by row, and two timelines one under the other."""

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from scripts.compare_batch import CHOSEN_PROMPTS, SETTINGS, BatchComparison, BatchRun
from scripts.compare_runs import Cost, Verdict
from scripts.compare_trees import Difference
from scripts.course import Day, Task
from scripts.run.run_report import in_ms, timeline_rows, timeline_scale, totals
from scripts.sources.files import REFERENCE, find_symbol

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

    def start_day(self, day: Day) -> None:
        """Its title, and what the columns are."""
        title = f"week {day.week} day {day.day}  {day.title}"
        self.line(Text(title, "bold"))
        left = MARGIN + self.name_width + WORD_WIDTH
        groups = f"{'time':>{sum(COLUMNS[:2])}}{'':{COLUMNS[2]}}{'memory':>{sum(COLUMNS[3:])}}"
        names = ("yours", "reference", "", "yours", "reference")
        self.line(Text(" " * left + groups, "dim"))
        self.line(Text(" " * left + self.cells(names), "dim"))

    def start_task(self, task: Task) -> None:
        """Its number and title."""
        self.line(Text(f"\n{task.number}. {task.title}", "bold"))

    def start_symbol(self, symbol: str) -> None:
        """The name that its rows stand under."""
        self.line(Text(f" {symbol.split('.', 1)[1]}", "cyan"))

    def not_written(self, names: list[str]) -> None:
        """In the place of a symbol's rows, with the methods that are missing of a class."""
        methods = [name.split(".")[-1] for name in names]
        shown = ", ".join(methods[:FEW]) + (f" and {len(methods) - FEW} more" if len(methods) > FEW else "")
        self.line(Text(f"{'':{MARGIN}}not written yet{': ' if shown else ''}{shown}", "dim"))

    def row(self, verdict: Verdict) -> None:
        """One case, with the difference below."""
        word = verdict.difference.word if verdict.difference else "equal"
        text = Text(f"{'':{MARGIN}}{verdict.case.name:{self.name_width}}")
        text.append(f"{word:{WORD_WIDTH}}", STYLES.get(word, "red"))
        if verdict.yours and verdict.reference:
            text.append_text(self.costs(verdict.yours, verdict.reference))
        self.line(text)
        if verdict.difference:
            self.detail(verdict.difference.sentence)

    def costs(self, yours: Cost, reference: Cost) -> Text:
        """Time and memory of both."""
        ratio = yours.seconds / max(reference.seconds, 1e-9)
        texts = (
            in_time(yours.seconds),
            in_time(reference.seconds),
            f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.1f}x",
            in_memory(yours.peak_bytes),
            in_memory(reference.peak_bytes),
        )
        cells = [f"{text:>{width}}" for text, width in zip(texts, COLUMNS, strict=True)]
        has_more = yours.peak_bytes > SLOW * reference.peak_bytes
        return Text.assemble(
            "".join(cells[:2]),
            (cells[2], "yellow" if ratio > SLOW else ""),
            (cells[3], "yellow" if has_more else ""),
            cells[4],
        )

    @staticmethod
    def cells(texts: tuple[str, ...]) -> str:
        """Texts in the table's columns."""
        return "".join(f"{text:>{width}}" for text, width in zip(texts, COLUMNS, strict=True))

    def line(self, text: Text) -> None:
        """One line, however long."""
        self.console.print(text, soft_wrap=True)

    def detail(self, sentence: str, style: str = "") -> None:
        """A sentence below a row, indented; in a terminal over as many lines as it takes."""
        text, indent = Text(sentence, style), MARGIN + 2
        if self.console.is_terminal:
            self.console.print(Padding(text, (0, 0, 0, indent)))
        else:
            self.line(Text(" " * indent).append_text(text))

    def summary(self, sentence: str, day: Day, tasks: list[Task]) -> None:
        """How many rows are equal, and the command that tests the first task that is not."""
        self.line(Text(f"\n{sentence}"))
        for task in tasks:
            where = f"--week {day.week} --day {day.day} --task {task.number}"
            self.line(Text(f"its tests say more: pdm run test {where}"))

    def start_batch(self) -> None:
        """The title of the whole run, and what it serves."""
        self.line(Text("\na whole run", "bold"))
        self.line(
            Text(
                f" {len(CHOSEN_PROMPTS)} requests in {SETTINGS['batch_size']} slots, "
                f"prompts in chunks of {SETTINGS['prefill_step']} tokens",
                "dim",
            )
        )

    def batch(self, found: BatchComparison | Difference, filled: list[str]) -> None:
        """The whole run, figure by figure, and both timelines on one scale of time."""
        if filled:
            names = ", ".join(find_symbol(symbol, REFERENCE)[1] for symbol in filled)
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
            self.line(Text(f"\n {name}", "cyan"))
            rows = timeline_rows(run.recorder, self.console, seconds)
            rows.rstrip()
            self.line(rows)
        self.line(timeline_scale(self.console, seconds))

    def figures(self, found: BatchComparison) -> None:
        """Both runs' figures side by side, then what became of the answers."""
        left, right = COLUMNS[:2]
        self.line(Text(f"{'':{MARGIN + 18}}{'yours':>{left}}{'reference':>{right}}", "dim"))
        for name, (yours, reference) in found.counts.items():
            style = "" if yours == reference else "red"
            self.line(Text(f"{'':{MARGIN}}{name:18}{yours:>{left}}{reference:>{right}}", style))
        for name, texts in measured(found).items():
            self.line(Text(f"{'':{MARGIN}}{name:18}{texts[0]:>{left}}{texts[1]:>{right}}"))
        text = Text(f"{'':{MARGIN}}{'answers':18}")
        sentences = [found.yours.failed.sentence] if found.yours.failed else found.answers
        if not sentences:
            self.line(text.append(f"   equal for all {len(CHOSEN_PROMPTS)} requests", "green"))
            return
        self.line(text.append(f"   {'cut short' if found.yours.failed else 'differ'}", "red"))
        for sentence in sentences:
            self.detail(sentence)


def measured(found: BatchComparison) -> dict[str, tuple[str, str]]:
    """The figures that vary from run to run, as texts."""

    def figures(run: BatchRun) -> tuple[str, str, str]:
        return in_ms(totals(run.recorder)["longest_itl_s"]), in_time(run.seconds), in_memory(run.peak_bytes)

    names = ("longest gap", "time", "memory")
    pairs = zip(figures(found.yours), figures(found.reference), strict=True)
    return dict(zip(names, pairs, strict=True))


def in_time(seconds: float) -> str:
    """Seconds, or milliseconds."""
    return three_digits(seconds, "s") if seconds >= 1 else three_digits(seconds * 1e3, "ms")


def in_memory(num_bytes: int) -> str:
    """Megabytes."""
    megabytes = num_bytes / 1e6
    return three_digits(megabytes, "MB") if megabytes >= 1 else f"{round(megabytes, 3):g} MB"


def three_digits(value: float, unit: str) -> str:
    """A number in a form that fits its column."""
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{decimals}f} {unit}"
