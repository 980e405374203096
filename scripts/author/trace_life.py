"""Serves the shipped model in this process, sends it requests, and writes which functions they enter.

It has a process of its own, since a profiler sees all that a process does.
"""

import json
import logging
import signal
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.request import Request, urlopen

import scripts  # noqa: F401  loads a fast BLAS, which must come before MLX
from kernel_runtime.cpu_kernel import CpuKernel
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.command import run_command
from scripts.course import ROOT
from scripts.hardware.try_server import READY
from scripts.run import serve
from scripts.sources.functions import function_at
from tiny_llm import Engine

SECONDS = 60
JSON = "application/json"
WARM_UP = "In the beginning"
PROMPTS = ("And the LORD spake unto Moses", "And it came to pass, that David said")  # of different lengths
MOST_TOKENS = 16  # the costs of steps are fitted after each 64 of them, which no request needs
DECODE_STEP = 10  # of the first request, in the middle of its answer
NOT_SERVED = ("scripts", "tests", "benches", "tiny_llm")
PACKAGES = {file.parent.name for file in ROOT.glob("*/__init__.py")} - {*NOT_SERVED}
TICK = "on_tick"
"""What uvicorn calls ten times per second, whether there are requests or not."""


class Way:
    """The functions that were entered, in the order of the first time, with the threads that did so."""

    def __init__(self) -> None:
        self.threads: dict[tuple[str, str], list[str]] = {}  # by file and function

    def enter(self, file: Path, function: str) -> None:
        """Note that this thread enters a function."""
        threads = self.threads.setdefault((file.relative_to(ROOT).as_posix(), function), [])
        name = threading.current_thread().name
        if name not in threads:
            threads.append(name)

    def files(self) -> list[dict[str, Any]]:
        """The files in the order in which they were first entered, each with its functions."""
        found: dict[str, dict[str, Any]] = {}
        for (file, function), threads in self.threads.items():
            entry = found.setdefault(file, {"file": file, "threads": [], "functions": []})
            entry["functions"].append(function)
            entry["threads"] += [each for each in threads if each not in entry["threads"]]
        return list(found.values())


class Tracer:
    """A profiler of all threads that notes what a request and one decode step enter.

    Attributes:
        is_on: whether a request is under way that is traced.
    """

    def __init__(self) -> None:
        self.request, self.step = Way(), Way()
        self.is_on = False
        self.num_steps = 0
        self.is_in_step = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Take an event of a function, as `sys.setprofile` describes it."""
        if not self.is_on or event not in ("call", "return") or frame.f_code.co_name == TICK:
            return
        file = served_file(frame.f_code.co_filename)
        if file is None:
            return
        is_step = frame.f_code is Engine.step.__code__
        if event == "call" and is_step:
            self.num_steps += 1
            self.is_in_step = self.num_steps == DECODE_STEP
        is_in_step = self.is_in_step and threading.current_thread().name == "engine"
        if event == "call":
            for way in (self.request, *([self.step] if is_in_step else [])):
                note_call(way, file, frame)
        elif is_step:
            self.is_in_step = False


def note_call(way: Way, file: Path, frame: FrameType) -> None:
    """Note the function that a frame belongs to, and the kernel if that is what it calls."""
    if function := function_at(file, frame.f_code.co_firstlineno):
        way.enter(file, function)
    if frame.f_code is CpuKernel.__call__.__code__:
        kernel = frame.f_locals["self"]
        way.enter(kernel.file, kernel.function)


@cache
def served_file(name: str) -> Path | None:
    """A source of the packages that serve; None for any other file."""
    file = Path(name)
    is_served = ROOT in file.parents and file.relative_to(ROOT).parts[0] in PACKAGES
    return file if is_served else None


def main() -> None:
    """Serve until the requests are answered, and print what they entered as JSON."""
    tracer, address, done = Tracer(), Future[str](), Future[None]()
    sys.setprofile(tracer)
    threading.setprofile(tracer)
    logging.getLogger("tiny_llm.server").addHandler(ReadyHandler(address))
    threading.Thread(target=ask_all, args=(tracer, address, done), name="client", daemon=True).start()
    sys.argv = ["serve", "--port", "0", "--model", SHIPPED_MODEL]
    with suppress(SystemExit):
        run_command(serve.main, "serve")
    sys.setprofile(None)
    done.result(SECONDS)
    print(json.dumps({"request": tracer.request.files(), "step": tracer.step.files()}))


class ReadyHandler(logging.Handler):
    """Finds the address in what a server logs."""

    def __init__(self, address: "Future[str]") -> None:
        super().__init__()
        self.address = address

    def emit(self, record: logging.LogRecord) -> None:
        """Look at a line."""
        if found := READY.search(record.getMessage()):
            self.address.set_result(found[1])


def ask_all(tracer: Tracer, address: "Future[str]", done: "Future[None]") -> None:
    """Send the requests one after the other, and end the server; all but the first one are traced."""
    try:
        url = address.result(SECONDS)
        ask(url, WARM_UP)
        tracer.is_on = True
        for prompt in PROMPTS:  # the end of the first one's connection comes before that of the second's
            ask(url, prompt)
        tracer.is_on = False
        done.set_result(None)
    except BaseException as error:
        done.set_exception(error)
    finally:
        signal.raise_signal(signal.SIGTERM)


def ask(url: str, prompt: str) -> None:
    """Send a streamed chat request, and read its answer to the end."""
    body = {
        "model": SHIPPED_MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": MOST_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    request = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": JSON})
    with urlopen(request, timeout=SECONDS) as response:
        events = response.read().decode()
    if not events.endswith("data: [DONE]\n\n"):
        raise ValueError(f"the answer did not end as it should: {events[-200:]}")


if __name__ == "__main__":
    main()
