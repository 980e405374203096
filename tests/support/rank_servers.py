"""Servers of several ranks for tests: real processes that talk over loopback."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil

ROOT = Path(__file__).parents[2]
SECONDS = 120
MODEL = "qwen3-kjv-4m"
ON_CPU = {"TINY_LLM_DEVICE": "cpu"}
SERVE = [sys.executable, "-m", "scripts.run.serve", "--port", "0"]


class RankServer:
    """A process whose children are the ranks of a server.

    Attributes:
        process: prints the address to `log` when it is ready.
        ranks: the ranks in their order.
        url: the address of rank 0.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self.log = log
        wait_for(lambda: self._address() or process.poll() is not None)
        assert process.poll() is None, self.text
        self.url = self._address()
        children = psutil.Process(process.pid).children(recursive=True)
        numbered = {each.environ().get("MLX_RANK"): each for each in children}
        self.ranks = [numbered[str(rank)] for rank in range(2)]

    def _address(self) -> str:
        found = re.search(r"ready: .* on (http://\S+)", self.text)
        return found[1] if found else ""

    @property
    def text(self) -> str:
        """What all processes have printed."""
        return self.log.read_text()

    @property
    def lines(self) -> list[str]:
        """The lines of `text` that are not MLX's."""
        return without_ring(self.text)

    def complete(self, prompt: str, **settings: Any) -> dict[str, Any]:
        """The answer of /v1/completions."""
        body = {"model": MODEL, "prompt": prompt, "ignore_eos": True, **settings}
        response = httpx2.post(f"{self.url}/v1/completions", json=body, timeout=SECONDS)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    @contextmanager
    def streaming(self, num_tokens: int) -> Iterator[list[str]]:
        """Within the block, a long answer is being streamed. Yield its lines, which grow until the end."""
        body = {"model": MODEL, "prompt": "And", "stream": True, "ignore_eos": True, "max_tokens": num_tokens}
        lines: list[str] = []

        def read() -> None:
            try:
                with httpx2.stream(
                    "POST", f"{self.url}/v1/completions", json=body, timeout=SECONDS
                ) as response:
                    lines.extend(line for line in response.iter_lines() if line)
            except httpx2.TransportError:
                lines.append("broken")

        thread = threading.Thread(target=read)
        thread.start()
        try:
            wait_for(lambda: len(lines) > 2)
            yield lines
        finally:
            thread.join(SECONDS)

    def end(self) -> int:
        """Wait for the end. Return the exit code, after checking that no rank is left."""
        code = self.process.wait(SECONDS)
        _, left = psutil.wait_procs(self.ranks, timeout=SECONDS)
        assert not left
        return code


def without_ring(text: str) -> list[str]:
    """The lines of a text, without those that MLX prints about sockets that end."""
    return [line for line in text.splitlines() if not line.startswith("[ring]")]


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "that took too long"
        time.sleep(0.01)


@contextmanager
def rank_server(
    log: Path, *options: str, launcher: tuple[str, ...] = (), environment: Mapping[str, str] = ON_CPU
) -> Iterator[RankServer]:
    """A server of two ranks, by default on the CPU, started by a launcher instead if there is one.

    Args:
        log: a file for what it prints.
        environment: what it has besides that of this process.
    """
    ranks = () if launcher else ("--ranks", "2")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*launcher, *SERVE, *ranks, *options],
            cwd=ROOT,
            stdin=subprocess.PIPE,  # at its end, mlx.launch would read forever
            stdout=out,
            stderr=out,
            env={**os.environ, **environment},
        )
    try:
        yield RankServer(process, log)
    finally:
        if process.poll() is None:
            for rank in psutil.Process(process.pid).children(recursive=True):
                rank.kill()
        process.kill()
        process.communicate()
