"""A command in a terminal of its own: what it shows, and keys for it."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time

from scripts.course import ROOT

WIDTH, HEIGHT = 80, 24
CTRL_C = "\x03"
OWN_TERMINAL = "import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"  # so that keys send signals
CODES = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Terminal:
    """A process in a terminal of its own: what it shows, and keys for it.

    Args:
        code: Python that the process runs.
        arguments: of the process.
    """

    def __init__(self, code: str, *arguments: str) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("4H", HEIGHT, WIDTH, 0, 0))
        self.settings = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL + code, *arguments],
            cwd=ROOT,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
        )
        self.text = ""
        self.all_text = ""

    def wait_for(self, words: str) -> None:
        """Read until the words were shown, and forget what came before them."""
        while words not in self.text:
            has_ended = self.process.poll() is not None  # before the last look at what it wrote
            if not self.read():
                assert not has_ended, f"{words!r} never came, but: {self.text}"
                time.sleep(0.05)
        self.text = self.text.partition(words)[2]

    def read(self) -> bool:
        """Read what is there, and say whether there was anything."""
        os.set_blocking(self.master, False)
        try:
            text = os.read(self.master, 65536).decode(errors="replace")
        except BlockingIOError:
            return False
        self.text += text
        self.all_text += text
        return True

    def press(self, key: str) -> None:
        """Type one key."""
        os.write(self.master, key.encode())

    def exit_code(self) -> int:
        """The process's own, when it has ended, with the terminal's settings as they were."""
        while self.process.poll() is None:  # a process whose terminal is full waits
            if not self.read():
                time.sleep(0.01)
        assert termios.tcgetattr(self.slave) == self.settings
        return self.process.returncode

    def screen(self) -> list[str]:
        """The lines shown now that are not empty; the cursor must be shown, too."""
        while self.read():
            pass
        lines, row, column, has_cursor = [""], 0, 0, True
        for private, number, command, control, text in CODES.findall(self.all_text):
            if text:
                lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
                column += len(text)
            elif control == "\n":
                row += 1
                lines += [""] * (row == len(lines))
            elif control == "\r":
                column = 0
            elif private and number == "25":
                has_cursor = command == "h"
            elif command == "A":
                row = max(row - int(number or 1), 0)
            elif command == "K":
                lines[row] = "" if number == "2" else lines[row][:column]
        assert has_cursor
        return [line.rstrip() for line in lines if line.strip()]

    def close(self) -> None:
        """End what is left."""
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)
