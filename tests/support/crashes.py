"""Crashes in compiled code: what runs is noted, and a test that crashed before fails without being run.

A pytest plugin for the processes of tests that `scripts.learn.test` starts.
"""

import ctypes
import faulthandler
import mmap
import os
from contextlib import suppress
from pathlib import Path

import pytest

from scripts.learn.crashes import FOLDER, MAX_KERNEL, Crash, read_crashes, running_kernel, running_test
from tests.support.places import Where


class CrashError(Exception):
    """Stands for a crash of the test in another process."""

    def __init__(self, crash: Crash) -> None:
        super().__init__(crash.sentence)
        self.crash = crash


class CrashNotes:
    """The plugin."""

    def __init__(self, folder: Path) -> None:
        self.file = running_test(folder).open("a")
        self.crashes = {crash.test: crash for crash in read_crashes(folder)}
        self.crashed_tasks: set[Where | None] = set()
        faulthandler.enable(self.file)
        with running_kernel(folder).open("w+b") as file:
            file.truncate(MAX_KERNEL)
            self.kernel = mmap.mmap(file.fileno(), MAX_KERNEL)

    def pytest_collection_finish(self) -> None:
        """Let the kernels in C++ note their names in memory that outlives the process."""
        from kernel_runtime.cpu_kernel import load_extension  # only after the package
        from kernel_runtime.native import BuildError

        with suppress(BuildError):
            load_extension().note_names(ctypes.addressof(ctypes.c_char.from_buffer(self.kernel)), MAX_KERNEL)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Note the test; let one that crashed fail, and pass over those of its task that come after it."""
        os.ftruncate(self.file.fileno(), 0)
        os.write(self.file.fileno(), f"{item.nodeid}\n".encode())
        where = Where.of(item.nodeid)
        if where in self.crashed_tasks:
            pytest.skip("a test of this task before it ended the process")
        if crash := self.crashes.get(item.nodeid):
            self.crashed_tasks.add(where)
            raise CrashError(crash)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CrashNotes(Path(os.environ[FOLDER])))
