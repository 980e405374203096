"""A rank's process: it ends with its launcher, it may be stopped, and its errors pass through a filter."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

LAUNCHER = "TINY_LLM_LAUNCHER"
"""In a rank's environment, the end of a pipe from which nothing comes until the launcher has ended."""
PR_SET_PDEATHSIG = 1
ENDED_EXIT_CODE = 70
NOISE = (b"[ring] Socket", b"[ring] Sending", b"[ring] Receiving", b"[ring] Too many")
"""How lines begin that MLX prints ten times for each socket that a lost rank leaves."""


class RankProcess(subprocess.Popen[bytes]):
    """A process that ends when this one does, whatever ends it.

    Args:
        command: what it runs. Ranks of this course call `end_with_launcher`.
        env: its environment.
        lifeline: the end of a pipe to read from, whose other end this process keeps open.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], lifeline: int) -> None:
        super().__init__(
            command,
            env={**env, LAUNCHER: str(lifeline)},
            pass_fds=[lifeline],
            start_new_session=True,
            stderr=subprocess.PIPE,
        )
        self._filter = threading.Thread(target=self._pass_errors_on, daemon=True)
        self._filter.start()

    @property
    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has halted it. Some systems don't tell: then False."""
        if not hasattr(os, "waitid") or self.poll() is not None:
            return False
        try:
            options = os.WSTOPPED | os.WCONTINUED | os.WNOHANG | os.WNOWAIT
            state = os.waitid(os.P_PID, self.pid, options)
        except ChildProcessError:
            return False
        return state is not None and state.si_code == os.CLD_STOPPED

    def finish_errors(self) -> None:
        """Wait until what the process has written has been passed on."""
        self._filter.join(1)

    def _pass_errors_on(self) -> None:
        assert self.stderr is not None
        for line in self.stderr:
            if not line.startswith(NOISE):
                sys.stderr.write(line.decode(errors="replace"))
                sys.stderr.flush()


def end_with_launcher() -> None:
    """End this process when the one that started it as a rank has ended, even if it was killed.

    Linux does that by itself, even while a collective keeps Python from running. Elsewhere, a thread waits at
    the other end of a pipe.
    """
    lifeline = os.environ.get(LAUNCHER)
    if lifeline is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def wait() -> None:
        os.read(int(lifeline), 1)
        os._exit(ENDED_EXIT_CODE)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
