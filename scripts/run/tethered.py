"""Run a program that others wrote, and end it with its launcher: python tethered.py COMMAND ARGUMENT...

A thread in that program's own process would not do: while its library serves, no Python may run there.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

LAUNCHER = "TINY_LLM_LAUNCHER"


def run(command: Sequence[str]) -> int:
    """Run a command, and pass signals on to it. Return its exit code, as shells have it."""
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: object) -> None:
        for each in started:
            each.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    process = subprocess.Popen(command)
    started.append(process)

    def kill_in_the_end() -> None:
        os.read(int(os.environ[LAUNCHER]), 1)
        process.kill()

    threading.Thread(target=kill_in_the_end, name="lifeline", daemon=True).start()
    code = process.wait()
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
