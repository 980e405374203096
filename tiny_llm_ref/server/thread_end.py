"""Wait until the operating system has ended a thread."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread, current_thread

POLL_SECONDS = 0.001
LONG_ENOUGH = 0.05
"""Seconds for a thread to end where its end cannot be observed."""
ENDING_SECONDS = 10.0
"""How long destructors may take. Those of a device that has failed may wait for it forever."""


def join_native(thread: Thread, timeout: float | None = None) -> bool:
    """Wait until a thread has ended, at most `timeout` seconds. Return whether it has.

    Without a `timeout`, only its destructors have a limit, `ENDING_SECONDS`.

    Python's own `join` returns when the thread's Python code has ended. MLX's destructors run after that, and
    one of them waits for the interpreter (mlx #4110). If the process exits meanwhile, it aborts.
    """
    if thread.ident is None:
        return True
    thread.join(timeout)
    if thread.is_alive():
        return False
    if sys.platform == "linux":
        deadline = time.monotonic() + (ENDING_SECONDS if timeout is None else timeout)
        while Path(f"/proc/self/task/{thread.native_id}").exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
    else:
        time.sleep(LONG_ENOUGH)
    return True


class Worker(ThreadPoolExecutor):
    """A pool of threads, just one by default, each of which starts with a submission.

    Args:
        name: of the threads.
        num_threads: largest number of them.
    """

    def __init__(self, name: str, num_threads: int = 1) -> None:
        started: list[Thread] = []
        super().__init__(num_threads, name, initializer=lambda: started.append(current_thread()))
        self._started = started

    def close(self) -> None:
        """Drop what has not begun, and wait until the threads have ended."""
        self.shutdown(cancel_futures=True)
        for thread in self._started:
            join_native(thread)
