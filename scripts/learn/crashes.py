"""What is left of a process of tests that compiled code ended: the test, the kernel and the lines of Python.

The tests note in a folder what they are about to do. The command that started them reads it and starts them
again, with the crash as the failure of its test.
"""

import json
import re
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = "COURSE_CRASH_NOTES"
"""Environment variable with the folder that the notes are in."""
MAX_KERNEL = 256  # bytes of a kernel's name
SIGNALS = {
    getattr(signal, name, None) for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP")
}
FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)


@dataclass(frozen=True)
class Crash:
    """A test that ended its process, the last kernel that ran and the lines of Python, innermost first."""

    test: str
    signal: str
    kernel: str
    frames: list[tuple[str, int]]

    @property
    def sentence(self) -> str:
        """What happened, and what it usually comes from."""
        ended = f"the test ended the process with {self.signal}"
        if not self.kernel:
            return f"{ended}, outside of any kernel in C++."
        return (
            f"{ended}. The last kernel that ran is {self.kernel}: usually an index there is beyond the end "
            "of an array, or a stride is wrong."
        )


def tests_begun(folder: Path) -> Path:
    """The file that is there once the tests take Ctrl-C themselves."""
    return folder / "begun"


def running_test(folder: Path) -> Path:
    """The file with the name of the test that runs; behind it Python writes its lines when it crashes."""
    return folder / "test"


def running_kernel(folder: Path) -> Path:
    """The file with the name of the last kernel that ran."""
    return folder / "kernel"


def read_crash(folder: Path, signal_name: str) -> Crash | None:
    """What the notes say of a process that has just crashed; None unless a test was running."""
    notes = running_test(folder).read_text(encoding="utf-8") if running_test(folder).exists() else ""
    test, _, dump = notes.partition("\n")
    if not test:
        return None
    kernel_file = running_kernel(folder)
    kernel = kernel_file.read_bytes().split(b"\0")[0].decode() if kernel_file.exists() else ""
    frames = [(file, int(line)) for file, line in FRAME.findall(dump)]
    return Crash(test, signal_name, kernel, frames)


def add_crash(folder: Path, crash: Crash) -> None:
    """Keep a crash for the tests when they start again."""
    crashes = [*read_crashes(folder), crash]
    (folder / "crashes").write_text(json.dumps([asdict(each) for each in crashes]), encoding="utf-8")


def read_crashes(folder: Path) -> list[Crash]:
    """The crashes that were kept."""
    file = folder / "crashes"
    notes = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return [Crash(**{**note, "frames": [(name, line) for name, line in note["frames"]]}) for note in notes]
