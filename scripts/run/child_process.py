"""A process of a launcher: it ends with it, it may be stopped, and what it prints passes through a filter."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

LAUNCHER = "TINY_LLM_LAUNCHER"
"""In a child's environment, the end of a pipe from which nothing comes until the launcher has ended."""
PR_SET_PDEATHSIG = 1
ENDED_EXIT_CODE = 70
NOISE = (b"[ring] Socket", b"[ring] Sending", b"[ring] Receiving", b"[ring] Too many")
"""How lines begin that MLX prints ten times for each socket that a lost rank leaves."""


class ChildProcess(subprocess.Popen[bytes]):
    """A process that ends when this one does, whatever ends it.

    Args:
        command: what it runs. Programs of this course call `end_with_launcher`; `tethered.py` runs others.
        env: its environment.
        lifeline: the end of a pipe to read from, whose other end this process keeps open.
        name: of the process. If given, all that it prints goes to standard error, with the name before each
            line. Otherwise only its errors pass through here, as they are.
        pipes: ends of other pipes that it gets.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        lifeline: int,
        name: str | None = None,
        pipes: Sequence[int] = (),
    ) -> None:
        super().__init__(
            command,
            env={**env, LAUNCHER: str(lifeline)},
            pass_fds=[lifeline, *pipes],
            start_new_session=True,
            stdout=None if name is None else subprocess.PIPE,
            stderr=subprocess.PIPE if name is None else subprocess.STDOUT,
        )
        self.name = name
        self._filter = threading.Thread(target=self._pass_output_on, daemon=True)
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

    def kill(self) -> None:
        """End it at once, with what it has started in its session."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)

    def finish_output(self) -> None:
        """Wait until what the process has written has been passed on."""
        self._filter.join(1)

    def _pass_output_on(self) -> None:
        prefix = "" if self.name is None else f"{self.name}: "
        output = self.stdout or self.stderr
        assert output is not None
        for line in output:
            if not line.startswith(NOISE):
                sys.stderr.write(prefix + line.decode(errors="replace"))
                sys.stderr.flush()


def end_with_launcher() -> None:
    """End this process when the launcher that started it has ended, even if it was killed.

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
