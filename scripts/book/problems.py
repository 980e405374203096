"""What is wrong with the book, each fault with its file, line and one sentence."""

from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Problem:
    """One fault.

    Args:
        file: as messages name it.
        line: counted from 1; 0 if the fault is in no line.
        text: a sentence without its full stop.
        is_missing: something is not there yet, which `--partial` allows.
    """

    file: str
    line: int
    text: str
    is_missing: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


class ChapterError(ValueError):
    """A fault in a word or a fence; `line` counts from its first line, which is 0."""

    def __init__(self, text: str, line: int = 0, is_missing: bool = False) -> None:
        super().__init__(text)
        self.line = line
        self.is_missing = is_missing


@dataclass
class Problems:
    """The faults found so far in one file."""

    file: str
    found: list[Problem] = field(default_factory=list)

    def add(self, line: int, text: str, is_missing: bool = False) -> None:
        """Note a fault."""
        self.found.append(Problem(self.file, line, text, is_missing))

    def add_error(self, line: int, error: Exception) -> None:
        """Note what an exception says about the word or fence that starts at `line`."""
        if isinstance(error, ChapterError):
            self.add(line + error.line, str(error), error.is_missing)
        else:
            self.add(line, str(error))
