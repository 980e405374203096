"""`pdm run serve --replicas 2`: real servers behind a router that nobody here wrote."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import psutil

from tests.clients.serving import MODEL

ROOT = Path(__file__).parents[2]
SECONDS = 120
SERVE = [sys.executable, "-m", "scripts.run.serve"]
ENVIRONMENT = {**os.environ, "TINY_LLM_DEVICE": "cpu"}


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
        self.members = psutil.Process(process.pid).children(recursive=True)

    @property
    def text(self) -> str:
        """What all processes have printed."""
        return self.log.read_text()

    def load(self, number: int) -> int:
        """How many requests a replica has, by its number."""
        found: int = httpx2.get(f"{self.urls[number - 1]}/get_load", timeout=SECONDS).json()[0]["num_reqs"]
        return found

    @contextmanager
    def streaming(self, number: int, num_tokens: int) -> Iterator[Iterator[str]]:
        """Within the block, a replica streams an answer. Yield the rest of its lines."""
        url = f"{self.url}/v1/completions"
        with ExitStack() as opened:
            for attempt in range(8):
                prompt = chr(ord("a") + attempt) * 20
                body = {"model": MODEL.name, "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True}
                sent = httpx2.stream("POST", url, json={**body, "stream": True}, timeout=SECONDS)
                lines = opened.enter_context(sent).iter_lines()
                next(lines)
                if self.load(number):
                    yield lines
                    return
        raise AssertionError(f"none of 8 requests reached replica {number}")

    def left(self) -> Sequence[psutil.Process]:
        """The processes that have not ended."""
        return psutil.wait_procs(self.members, timeout=SECONDS)[1]


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
