"""Commands run within the test's own process: a process for each would take most of a test's time."""

import contextlib
import importlib
import io
import os
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from kernel_runtime import native
from scripts import packages
from scripts.course import ROOT


def run(module: str, *arguments: str, stdin: str = "", folder: Path | None = None) -> CompletedProcess[str]:
    """What `python -m MODULE ARGUMENTS` prints, and its exit code.

    An exception that it does not handle is the test's. A command that forks, or lets a process that it starts
    print, is one for `run_apart`.

    Args:
        module: of the project, such as `scripts.run.demo`.
        stdin: the whole of standard input.
        folder: where the command runs, which holds the package `tiny_llm` that it finds; if not given, the
            project's root, with the package under test.
    """
    streams = [io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8", newline="") for text in (stdin, "", "")]
    with process_kept(), contextlib.ExitStack() as stack:
        if folder is not None:
            packages.forget()
            sys.path.insert(0, str(folder))
            importlib.invalidate_caches()
        os.chdir(folder or ROOT)
        sys.argv[:] = [module, *arguments]
        sys.stdin = streams[0]
        stack.enter_context(contextlib.redirect_stdout(streams[1]))
        stack.enter_context(contextlib.redirect_stderr(streams[2]))
        code = exit_code_of(module)
    for stream in streams[1:]:
        stream.seek(0)
    return CompletedProcess([module, *arguments], code, streams[1].read(), streams[2].read())


def run_apart(*arguments: str) -> CompletedProcess[str]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def use_own_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `progress` and `watch` remember from now on: a folder beside the compiled code that exists."""
    folder.mkdir()
    (folder / "native").symlink_to(native.cache_dir())
    monkeypatch.setenv("TINY_LLM_CACHE", str(folder))
    return folder / "remembered"


def exit_code_of(module: str) -> int:
    """Run a module as a program."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that the module is imported already
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return int(end.code is not None) if not isinstance(end.code, int) else end.code
    return 0


@contextlib.contextmanager
def process_kept() -> Iterator[None]:
    """Put back what a command may change of its process: package, folders, arguments, environment, Ctrl-C."""
    modules, finders = packages.known(), list(sys.meta_path)
    path, arguments, stdin = list(sys.path), list(sys.argv), sys.stdin
    environment, folder, handler = dict(os.environ), Path.cwd(), signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        packages.forget()
        sys.modules.update(modules)
        sys.meta_path[:] = finders
        sys.path[:], sys.argv[:], sys.stdin = path, arguments, stdin
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        signal.signal(signal.SIGINT, handler)
