"""Servers in processes of their own, started and stopped for a benchmark."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile

import httpx2
import psutil

START_SECONDS = 300.0
STOP_SECONDS = 30.0
GAUGE = r"^{}{{.*}} (\S+)$"


@dataclass(frozen=True)
class ServerProcess:
    """A server that answers.

    Attributes:
        url: its address.
        model: the name of its model.
        process: to see its memory.
    """

    url: str
    model: str
    process: psutil.Process

    @property
    def memory(self) -> int:
        """Bytes that the process holds."""
        return int(self.process.memory_info().rss)

    def gauge(self, name: str) -> float:
        """A number of its metrics, by its name there."""
        text = httpx2.get(self.url + "/metrics").text
        found = re.search(GAUGE.format(name), text, re.M)
        if found is None:
            raise ValueError(f"the server's metrics have no {name}")
        return float(found[1])


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def serving(module: str, model: str, options: list[str], health: str) -> Iterator[ServerProcess]:
    """Start a server, wait until it answers, and stop it in the end.

    Args:
        module: run with `python -m`; it must know `--model` and `--port`.
        model: for `--model`, and the name that requests give.
        options: more of its options.
        health: the path that answers with 200 once requests are taken.

    Raises:
        ValueError: the server ended, or did not answer in time.
    """
    port = free_port()
    command = [sys.executable, "-m", module, "--model", model, "--port", str(port), *options]
    with TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_until_ready(process, f"http://127.0.0.1:{port}{health}")
            yield ServerProcess(f"http://127.0.0.1:{port}", model, psutil.Process(process.pid))
        except TimeoutError as error:
            log.seek(0)
            last = log.read().decode(errors="replace").strip().splitlines()[-1:]
            raise ValueError(f"{module} {error}: {' '.join(last)}") from None
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    """Wait until a server answers with 200; TimeoutError if it has ended, or does not answer in time."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise TimeoutError(f"ended with exit code {process.returncode}")
        try:
            if httpx2.get(url, timeout=5).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(0.05)
    raise TimeoutError(f"did not answer within {START_SECONDS:.0f} seconds")
