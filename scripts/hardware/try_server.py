"""Start the server, let some clients ask at once, one of them for a form, and end it."""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.request import Request, urlopen

import typer

from scripts.command import run_command
from scripts.course import ROOT
from scripts.errors import usage_errors

SECONDS = 300  # the first step may compile every kernel
READY = re.compile(r"ready: .* on (http://\S+)")  # what the server logs
FORM = "[a-c]{3}!"
PROMPTS = ("In the beginning", "And God said unto", "And it came to pass, that", "Blessed are")
ServeOptions = Annotated[list[str] | None, typer.Argument(help="Options of `pdm run serve`, behind --.")]


def main(options: ServeOptions = None) -> None:
    """Serve with some options, send requests, and check what clients rely on: answers, a form, a clean end.

    Exit code 1 says that something was not as it should be, and what.

    Example: pdm run author try-server -- --kv-bits 8
    """
    with usage_errors(), tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        with served(options or [], Path(folder) / "log") as url:
            model = fetch(f"{url}/v1/models")["data"][0]["id"]
            requests: list[dict[str, Any]] = [{"prompt": prompt} for prompt in PROMPTS]
            requests.append({"prompt": PROMPTS[0], "structured_outputs": {"regex": FORM}})
            with ThreadPoolExecutor(len(requests)) as pool:
                answers = list(pool.map(lambda each: answer(url, model, each), requests))
            form = answers[-1]["choices"][0]["text"]
            if not re.fullmatch(FORM, form):
                sys.exit(f"error: the answer {form!r} does not have the form {FORM}")
        num_tokens = sum(each["usage"]["completion_tokens"] for each in answers)
        print(f"{len(answers)} answers, {num_tokens} tokens, in {time.monotonic() - start:.1f} s")


@contextmanager
def served(options: list[str], log: Path, folder: Path = ROOT) -> Iterator[str]:
    """The address of a server within the block; exits with what it printed if it fails or ends badly.

    It starts in the folder, where --mine finds the package.
    """
    command = [sys.executable, "-m", "scripts.run.serve", "--port", "0", *options]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
    try:
        yield address(process, log)
        process.send_signal(signal.SIGTERM)
        if process.wait(SECONDS) != 0:
            sys.exit(f"error: the server ended with exit code {process.returncode}\n{log.read_text()}")
    finally:
        process.kill()
        process.wait()


def address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """The address that the server prints once it is ready."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if found := READY.search(log.read_text()):
            return found[1]
        time.sleep(0.1)
    sys.exit(f"error: the server was not ready\n{log.read_text()}")


def answer(url: str, model: str, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of /v1/completions."""
    return fetch(f"{url}/v1/completions", {"model": model, "temperature": 0, "max_tokens": 24, **request})


def fetch(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """What an address answers, to a JSON body if there is one."""
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=SECONDS) as response:
        content: dict[str, Any] = json.load(response)
    return content


if __name__ == "__main__":
    run_command(main, "author try-server")
