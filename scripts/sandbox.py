"""Run tests on a package that is not in the repository, many packages at a time.

Each run is a process of its own with the package under the name `tiny_llm`, and nothing one package does can
reach another. On Linux it is forked, so that the slow imports are done once. On macOS it is spawned: a forked
child dies there at its first GPU operation.
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
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess, SpawnProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal, NamedTuple

from scripts.course import ROOT
from scripts.errors import ENDING_SIGNALS, signals_held
from scripts.sources.files import write

if TYPE_CHECKING:
    import pytest

SECONDS_PER_RUN = 100
"""That a run may compute; whatever else a machine does, a test is not said to fail for it."""
SECONDS_TO_WAIT = 300
"""After which a run waits for what never comes."""
STILL_RUNNING = "still running after"
"""Begins the error of a run that has taken too long."""
StartMethod = Literal["fork", "spawn"]
START_METHOD: StartMethod = "spawn" if sys.platform == "darwin" else "fork"
IN_MEMORY = Path("/dev/shm")  # of Linux; on a disk, to write a package takes a third of a short run
PLUGIN = "_hypothesis_pytestplugin"
SLOW_IMPORTS = (
    PLUGIN,
    "_pytest.unittest",
    "numpy.random",
    "numpy.typing",
    "pdb",
    "scripts.checkpoints.files",
    "scripts.sources.c_source",
    "scripts.sources.files",
    "hypothesis",
    "llguidance",
    "numpy",
    "mlx.nn",
    "mlx_lm.models.qwen3",
    "mlx_lm.models.qwen2",
    "mlx_lm.models.llama",
)


@dataclass(frozen=True)
class Run:
    """Tests to run on a package, given as the sources of its files; those of `first` come first."""

    name: str
    sources: Mapping[Path, str]
    tests: Sequence[str]
    pytest_options: Sequence[str] = ()
    first: Sequence[str] = ()


@dataclass
class Outcome:
    """What became of the tests: their names, and the message of each that failed."""

    name: str
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0
    output: str = ""
    seconds: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether every test was run, by pytest's exit code."""
        return self.exit_code in (0, 1)


class Running(NamedTuple):
    """A run whose process has begun, and the folder that holds its package."""

    run: Run
    process: ForkProcess | SpawnProcess
    receiver: Connection
    folder: Path


def run_all(
    runs: Iterable[Run], num_workers: int | None = None, start_method: StartMethod = START_METHOD
) -> Generator[Outcome, None, None]:
    """The outcome of each run, as they end; a process that died is an outcome too."""
    if start_method == "fork":
        for module in SLOW_IMPORTS:
            importlib.import_module(module)
        gc.freeze()  # or each process would look through all of these objects, and so copy their memory
    waiting = iter(runs)
    running: dict[object, Running] = {}
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None) as folder:
        try:
            while True:
                for run in islice(waiting, (num_workers or os.cpu_count() or 1) - len(running)):
                    started = start(run, Path(tempfile.mkdtemp(dir=folder)), start_method)
                    running[started.receiver] = started
                if not running:
                    return
                for ready in wait([each.receiver for each in running.values()]):
                    yield receive_outcome(running.pop(ready))
        finally:
            for each in running.values():
                each.process.kill()
                each.process.join()  # which may still write into its folder until then


def start(run: Run, folder: Path, start_method: StartMethod) -> Running:
    """Write the package of a run, and begin its process."""
    write(run.sources, folder / "tiny_llm")
    write_bytecode(run, folder / "tiny_llm")
    receiver, sender = multiprocessing.Pipe(duplex=False)
    arguments = (replace(run, sources={}, first=tuple(run.first)), folder, sender)
    process: ForkProcess | SpawnProcess
    if start_method == "spawn":
        process = multiprocessing.get_context("spawn").Process(target=send_outcome, args=arguments)
        resource_tracker.ensure_running()  # which lets signals in again, in some releases of Python
    else:
        process = multiprocessing.get_context("fork").Process(target=send_outcome, args=arguments)
    with signals_held():
        process.start()
    sender.close()
    return Running(run, process, receiver, folder)


def send_outcome(run: Run, folder: Path, sender: Connection) -> None:
    """The whole life of a process; what would end it does so at once and without a word."""
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # not what the command that started it does at them
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    sender.send(run_one(run, folder))


def receive_outcome(running: Running) -> Outcome:
    """What the process sent, or that it ended without a word."""
    name, process = running.run.name, running.process
    try:
        outcome: Outcome = running.receiver.recv()
    except EOFError:
        process.join()
        sentence = f"the process died with exit code {process.exitcode}, in native code perhaps"
        outcome = Outcome(name, failed={"(the run)": sentence}, exit_code=1)
    running.receiver.close()
    process.join()
    shutil.rmtree(running.folder)
    return outcome


def run_one(run: Run, folder: Path) -> Outcome:
    """Run in this process, which is used up by it, on the package that a folder holds as tiny_llm."""
    import pytest  # here, so that commands which run no test need not wait for it

    outcome = Outcome(run.name)
    start = time.perf_counter()
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, give_up)
    signal.setitimer(signal.ITIMER_PROF, SECONDS_PER_RUN)
    signal.alarm(SECONDS_TO_WAIT)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # to look for plugins takes a sixth of a short run
    # Before the repository, which has a tiny_llm of its own.
    arguments = [*run.tests, "-o", f"pythonpath={folder} {ROOT}", "-p", PLUGIN, *run.pytest_options]
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(output):
        try:
            outcome.exit_code = pytest.main(arguments, plugins=[Collector(outcome, run.first)])
        except TimeoutError as error:
            outcome.failed["(the run)"] = str(error)
            outcome.exit_code = 1
    outcome.output = output.getvalue()
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    outcome.seconds = time.perf_counter() - start
    return outcome


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
    for path, source in run.sources.items():
        compiled = bytecode(source) if path.suffix == ".py" else None
        if compiled is not None:
            file = Path(importlib.util.cache_from_source(str(package / path)))
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(compiled)


def give_up(signal_number: int, frame: FrameType | None) -> None:
    """End a test that loops or waits for ever."""
    limit = SECONDS_PER_RUN if signal_number == signal.SIGPROF else SECONDS_TO_WAIT
    raise TimeoutError(f"{STILL_RUNNING} {limit} s")


def text_of(excinfo: "pytest.ExceptionInfo[BaseException]") -> str:
    """The error of a test, or those that hypothesis groups."""
    errors = getattr(excinfo.value, "exceptions", (excinfo.value,))
    return "".join(line for error in errors for line in traceback.format_exception_only(error))


class Collector:
    """A pytest plugin that puts some tests first, and notes names and messages."""

    def __init__(self, outcome: Outcome, first: Sequence[str] = ()) -> None:
        self.outcome = outcome
        self.places = {name: place for place, name in enumerate(first)}

    def pytest_collection_modifyitems(self, items: "list[pytest.Item]") -> None:
        """Sort the tests."""
        items.sort(key=lambda item: self.places.get(item.nodeid, len(self.places)))

    def pytest_runtest_setup(self, item: "pytest.Item") -> None:
        """With --tb=line, ask for the error alone: pytest's quotation would take longer than most tests."""
        if item.config.option.tbstyle == "line":
            item.repr_failure = text_of  # type: ignore[method-assign, assignment]

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        """Note a test that passed, or that failed in its body or before."""
        if report.failed:
            self.outcome.failed[report.nodeid] = report.longreprtext
        elif report.passed and report.when == "call":
            self.outcome.passed.append(report.nodeid)

    def pytest_collectreport(self, report: "pytest.CollectReport") -> None:
        """Note a file that could not be imported."""
        if report.failed:
            self.outcome.failed[report.nodeid] = report.longreprtext
