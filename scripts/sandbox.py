"""Run tests on a package that is not in the repository, many packages at a time.

Each run is a forked process with the package under the name `tiny_llm`: the slow imports are done once,
before the forks, and nothing one package does can reach another.
"""

import contextlib
import functools
import gc
import importlib
import importlib.util
import io
import marshal
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import FrameType

import pytest

from scripts.course import ROOT
from scripts.render import write

SECONDS_PER_RUN = 120
IN_MEMORY = Path("/dev/shm")  # of Linux; on a disk, to write a package takes a third of a short run
SLOW_IMPORTS = (
    "hypothesis",
    "numpy",
    "mlx.nn",
    "mlx_lm.models.qwen3",
    "mlx_lm.models.qwen2",
    "mlx_lm.models.llama",
)


@dataclass(frozen=True)
class Run:
    """Tests to run on a package, given as the sources of its files."""

    name: str
    sources: Mapping[Path, str]
    tests: Sequence[str]
    pytest_options: Sequence[str] = ()


@dataclass
class Outcome:
    """What became of the tests: their names, and the message of each that failed."""

    name: str
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0
    output: str = ""
    seconds: float = 0.0


def run_all(runs: Iterable[Run], num_workers: int | None = None) -> Generator[Outcome, None, None]:
    """The outcome of each run, as they end; a process that died is an outcome too."""
    for module in SLOW_IMPORTS:
        importlib.import_module(module)
    gc.freeze()  # or each process would look through all of these objects, and so copy their memory
    context = multiprocessing.get_context("fork")
    waiting = iter(runs)
    running: dict[object, tuple[Run, ForkProcess, Connection]] = {}
    try:
        while True:
            for run in islice(waiting, (num_workers or os.cpu_count() or 1) - len(running)):
                for source in python_sources(run).values():
                    bytecode(source)  # before the fork, so that each source is compiled once
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=send_outcome, args=(run, sender))
                process.start()
                sender.close()
                running[receiver] = (run, process, receiver)
            if not running:
                return
            for ready in wait([receiver for _, _, receiver in running.values()]):
                yield receive_outcome(*running.pop(ready))
    finally:
        for _, process, _ in running.values():
            process.kill()


def send_outcome(run: Run, sender: Connection) -> None:
    """The whole life of a forked process; what would end it does so at once and without a word."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # not what the command that forked does at them
    sender.send(run_one(run))


def receive_outcome(run: Run, process: ForkProcess, receiver: Connection) -> Outcome:
    """What the process sent, or that it ended without a word."""
    try:
        outcome: Outcome = receiver.recv()
    except EOFError:
        process.join()
        sentence = f"the process died with exit code {process.exitcode}, in native code perhaps"
        outcome = Outcome(run.name, failed={"(the run)": sentence}, exit_code=1)
    receiver.close()
    process.join()
    return outcome


def run_one(run: Run) -> Outcome:
    """Run in this process, which is used up by it."""
    outcome = Outcome(run.name)
    start = time.perf_counter()
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS_PER_RUN)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None) as folder:
        write(run.sources, Path(folder) / "tiny_llm")
        write_bytecode(run, Path(folder) / "tiny_llm")
        # Before the repository, which has a tiny_llm of its own.
        options = ["-o", f"pythonpath={folder} {ROOT}", *run.pytest_options]
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(output):
            try:
                outcome.exit_code = pytest.main([*run.tests, *options], plugins=[Collector(outcome)])
            except TimeoutError as error:
                outcome.failed["(the run)"] = str(error)
                outcome.exit_code = 1
        outcome.output = output.getvalue()
    signal.alarm(0)
    outcome.seconds = time.perf_counter() - start
    return outcome


def python_sources(run: Run) -> dict[Path, str]:
    """The modules of its package."""
    return {path: source for path, source in run.sources.items() if path.suffix == ".py"}


@functools.lru_cache(maxsize=1024)
def bytecode(source: str) -> bytes | None:
    """What Python puts in `__pycache__` for a source, here unchecked (PEP 552); None for one with a fault."""
    try:
        code = compile(source, "tiny_llm", "exec")
    except (SyntaxError, ValueError):
        return None
    is_by_hash, no_hash = (1).to_bytes(4, "little"), bytes(8)
    return importlib.util.MAGIC_NUMBER + is_by_hash + no_hash + marshal.dumps(code)


def write_bytecode(run: Run, package: Path) -> None:
    """Put the modules of a package where its import finds them compiled."""
    for path, source in python_sources(run).items():
        compiled = bytecode(source)
        if compiled is not None:
            file = Path(importlib.util.cache_from_source(str(package / path)))
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(compiled)


def give_up(signal_number: int, frame: FrameType | None) -> None:
    """End a test that loops for ever."""
    raise TimeoutError(f"still running after {SECONDS_PER_RUN} s")


class Collector:
    """A pytest plugin that notes names and messages."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that passed, or that failed in its body or before."""
        if report.failed:
            self.outcome.failed[report.nodeid] = report.longreprtext
        elif report.passed and report.when == "call":
            self.outcome.passed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that could not be imported."""
        if report.failed:
            self.outcome.failed[report.nodeid] = report.longreprtext
