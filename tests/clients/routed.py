"""`pdm run serve --replicas 2`: real servers behind a router that nobody here wrote."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from string import ascii_letters

import httpx2
import psutil

from scripts.run.replicas import REPLICA
from tests.clients.serving import MODEL

ROOT = Path(__file__).parents[2]
SECONDS = 120
SERVE = [sys.executable, "-m", "scripts.run.serve"]
ENVIRONMENT = {**os.environ, "TINY_LLM_DEVICE": "cpu"}


class Stream:
    """An answer that is being streamed: its prompt, and the rest of its lines."""

    def __init__(self, prompt: str, lines: Iterator[str]) -> None:
        self.prompt, self.lines = prompt, lines


class Routed:
    """A launcher, two replicas and a router.

    Attributes:
        process: the launcher, which prints to `log`.
        router: "vllm" or "sglang".
        url: the address of the router.
        urls: those of the replicas.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, router: str) -> None:
        self.process, self.log, self.router = process, log, router
        wait_for(lambda: "\nready: " in self.text or process.poll() is not None)
        assert process.poll() is None, self.text
        found = re.findall(rf"ready: {MODEL.name} on (http://\S+)", self.text)
        *self.urls, self.url = found
        self.prompts = (letter * 20 for letter in ascii_letters)  # none begins like another
        self.members = psutil.Process(process.pid).children(recursive=True)
        by_number = {each.environ().get(REPLICA): each for each in self.members}
        self.replicas = [by_number[str(number)] for number in (1, 2)]

    @property
    def text(self) -> str:
        """What all processes have printed."""
        return self.log.read_text()

    def lose(self, number: int) -> None:
        """Kill a replica by its number, from 1, unless it is gone."""
        with suppress(psutil.NoSuchProcess):
            self.replicas[number - 1].kill()

    def load(self, number: int) -> int:
        """How many requests a replica has, by its number."""
        found: int = httpx2.get(f"{self.urls[number - 1]}/get_load", timeout=SECONDS).json()[0]["num_reqs"]
        return found

    def complete(self, prompt: str, num_tokens: int = 4) -> int:
        """The status of a router's response to a request."""
        url = f"{self.url}/v1/completions"
        return httpx2.post(url, json=body_of(prompt, num_tokens), timeout=SECONDS).status_code

    @contextmanager
    def streaming(self, number: int, num_tokens: int) -> Iterator[Stream]:
        """Within the block, a replica streams the answer to a new prompt.

        A router sends a prompt that is like none before to the replica with the fewest requests, so one of a
        few reaches each.
        """
        url = f"{self.url}/v1/completions"
        with ExitStack() as opened:
            for prompt in islice(self.prompts, 4):
                before = self.load(number)
                body = {**body_of(prompt, num_tokens), "stream": True}
                sent = httpx2.stream("POST", url, json=body, timeout=SECONDS)
                lines = opened.enter_context(sent).iter_lines()
                next(lines)
                if self.load(number) > before:
                    yield Stream(prompt, lines)
                    return
        raise AssertionError(f"none of 4 requests reached replica {number}")

    def left(self) -> Sequence[psutil.Process]:
        """The processes that have not ended."""
        return psutil.wait_procs(self.members, timeout=SECONDS)[1]


def body_of(prompt: str, num_tokens: int) -> dict[str, object]:
    """The body of a request for so many tokens."""
    return {"model": MODEL.name, "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True}


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "that took too long"
        time.sleep(0.05)


@contextmanager
def routed(router: str, log: Path) -> Iterator[Routed]:
    """Two replicas of the shipped model behind a router."""
    options = ["--replicas", "2", "--router", router, "--port", "0"]
    with log.open("wb") as out:
        process = subprocess.Popen([*SERVE, *options], cwd=ROOT, stdout=out, stderr=out, env=ENVIRONMENT)
    try:
        yield Routed(process, log, router)
    finally:
        process.kill()  # with which all end
        process.wait()


@contextmanager
def replica_at(url: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A server at the address of one that is gone."""
    command = [*SERVE, "--port", url.rpartition(":")[2]]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
