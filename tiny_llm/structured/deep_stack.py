"""Call a function of another library that may nest deeply, or take very long."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
_starting = threading.Lock()


def on_deep_stack(num_bytes: int, function: Callable[[], T], seconds: float) -> T:
    """Call a function in a thread of its own that has so many bytes of stack, and wait for it.

    A library in another language does not notice the end of its stack: the whole process ends. The memory is
    only used as far as the calls nest.

    Raises:
        concurrent.futures.TimeoutError: it took more than so many seconds. The thread goes on, since none can
            be ended, but nothing waits for it any more.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    with _starting:  # the size is that of all threads that start meanwhile
        before = threading.stack_size(num_bytes)
        try:
            threading.Thread(target=run, name="deep-stack", daemon=True).start()
        finally:
            threading.stack_size(before)
    return future.result(seconds)
