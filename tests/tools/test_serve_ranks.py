"""`pdm run serve --ranks 2`: the answers of one process, and an end that leaves nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from scripts.checkpoints.models import load_by_name
from scripts.run import ranks, serve
from scripts.run.serve_options import ServeOptions
from tests.support.rank_servers import (
    MODEL,
    ROOT,
    SECONDS,
    SERVE,
    RankServer,
    rank_server,
    wait_for,
    without_ring,
)
from tiny_llm import Engine, SamplingParams

pytestmark = pytest.mark.sampled(3, "scripts/run/", "http_server/", "tiny_llm_ref/ranks/", "kernel_runtime/")
STOPPED = "error: rank {} was stopped by a signal; all ranks were ended\n"
GREEDY = {"temperature": 0, "max_tokens": 40}
SEEDED = {"temperature": 0.9, "seed": 7, "max_tokens": 40}
PROMPTS = ["In the beginning God created the heaven and the earth. And", "And Moses said unto", "x"]
CONFIGURATIONS = [(), ("--kv-bits", "8", "--speculation", "lookup")]


@pytest.fixture(scope="module", params=CONFIGURATIONS, ids=["floats", "kv-bits 8 and lookup"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    with rank_server(tmp_path_factory.mktemp("ranks") / "log", *request.param) as started:
        yield started


@pytest.fixture
def kv_bits(server: RankServer, request: pytest.FixtureRequest) -> int | None:
    return 8 if "--kv-bits" in request.node.callspec.params["server"] else None


def answers_of_one_process(kv_bits: int | None, settings: dict[str, Any]) -> list[str]:
    """What `Engine` answers to each prompt."""
    model, tokenizer = load_by_name(MODEL)
    with Engine(model, tokenizer, kv_bits=kv_bits) as engine:
        params = SamplingParams(**settings, min_tokens=settings["max_tokens"])  # as ignore_eos has it
        results = engine.generate(PROMPTS, params)
    return [result.text for result in results]


def text_of(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["text"]
    return text


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("settings", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_answers_are_those_of_one_process(
    server: RankServer, kv_bits: int | None, settings: dict[str, Any]
) -> None:
    expected = answers_of_one_process(kv_bits, settings)
    assert len({*expected}) == len(PROMPTS)
    assert [text_of(server.complete(prompt, **settings)) for prompt in PROMPTS] == expected
    with ThreadPoolExecutor(len(PROMPTS)) as pool:  # again, in one batch and from the prefix cache
        together = [*pool.map(lambda prompt: server.complete(prompt, **settings), PROMPTS)]
    assert [text_of(answer) for answer in together] == expected


def test_prefixes_are_cached(server: RankServer) -> None:
    prompt = "And the sons of Noah, that went forth of the ark, were Shem, and Ham, and Japheth"
    first, second = (server.complete(prompt, **GREEDY) for _ in range(2))
    assert text_of(first) == text_of(second)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_answers_are_streamed(server: RankServer) -> None:
    expected = text_of(server.complete(PROMPTS[0], **GREEDY))
    body = {"model": MODEL, "prompt": PROMPTS[0], "ignore_eos": True, "stream": True, **GREEDY}
    with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=SECONDS) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    assert "".join(text_of(json.loads(line)) for line in lines) == expected


def test_only_rank_0_logs(server: RankServer) -> None:
    before = len(server.lines)
    server.complete("And", **GREEDY)
    wait_for(lambda: len(server.lines) > before)  # a line may come after the answer
    (line,) = server.lines[before:]
    assert "tokens=40" in line
    assert server.text.count("ready: ") == 1


def test_idle_ranks_sleep(server: RankServer) -> None:
    """MLX alone would let rank 1 spin, with all that the machine's other processes leave of a core."""
    server.complete("And", **GREEDY)
    seconds = 2.0

    def used() -> list[float]:
        return [sum(each.cpu_times()[:2]) for each in server.ranks]

    time.sleep(0.2)  # the last lines of the answer may still be on their way
    before = used()
    time.sleep(seconds)
    for after, start in zip(used(), before, strict=True):
        assert after - start < 0.05 * seconds


@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_is_killed_while_idle(lost: int, tmp_path: Path) -> None:
    with rank_server(tmp_path / "log") as server:
        server.ranks[lost].send_signal(signal.SIGKILL)
        assert server.end() == 1
        assert server.text.endswith(f"error: rank {lost} was ended by SIGKILL; all ranks were stopped\n")
        assert "Traceback" not in server.text


def test_a_rank_that_is_killed_during_a_request(tmp_path: Path) -> None:
    with rank_server(tmp_path / "log") as server:
        with server.streaming(2000) as lines:
            server.ranks[1].send_signal(signal.SIGKILL)
            assert server.end() == 1
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "stopped"
        assert server.text.endswith("error: rank 1 was ended by SIGKILL; all ranks were stopped\n")
        assert "Traceback" not in server.text
        assert "draining" not in server.text
        assert "[ring]" not in server.text


def test_a_rank_that_hangs(tmp_path: Path) -> None:
    with rank_server(tmp_path / "log", "--step-timeout", "1") as server:
        server.ranks[1].send_signal(signal.SIGSTOP)  # before any step, since a busy machine may need a second
        body = {"model": MODEL, "prompt": "And"}
        with pytest.raises(httpx2.TransportError):
            httpx2.post(f"{server.url}/v1/completions", json=body, timeout=SECONDS)
        assert server.end() == 1
        assert "Timeout (0:00:01)!" in server.text
        assert server.text.endswith(STOPPED.format(1))


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="this system doesn't tell whether a process is stopped")
def test_a_rank_that_is_stopped_during_a_request(tmp_path: Path) -> None:
    with rank_server(tmp_path / "log") as server:
        with server.streaming(2000) as lines:
            start = time.monotonic()
            server.ranks[1].send_signal(signal.SIGSTOP)
            assert server.end() == 1
            assert time.monotonic() - start < 60  # far less than the first limit of a step
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "stopped"
        assert server.text.endswith(STOPPED.format(1))


def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with rank_server(tmp_path / "log") as server:
        server.process.kill()
        _, left = psutil.wait_procs(server.ranks, timeout=SECONDS)
        assert not left


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_drains(sent: signal.Signals, tmp_path: Path) -> None:
    with rank_server(tmp_path / "log") as server:
        with server.streaming(60) as lines:
            server.process.send_signal(sent)
        assert lines[-1] == "data: [DONE]"
        assert server.end() == 0
        assert "tokens=60" in server.lines[-1]


def test_the_second_signal_exits_at_once(tmp_path: Path) -> None:
    with rank_server(tmp_path / "log") as server, server.streaming(2000) as lines:
        server.process.send_signal(signal.SIGINT)
        wait_for(lambda: "draining" in server.text)
        server.process.send_signal(signal.SIGINT)
        assert server.end() == 128 + signal.SIGINT
    assert "data: [DONE]" not in lines
    assert "error: " not in server.text


def refused(*options: str) -> str:
    """The only line that the command prints before it exits with 2."""
    result = subprocess.run(
        [*SERVE, *options], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert result.returncode == 2, result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--ranks", "3"], "3 ranks cannot share this model evenly: its num_key_value_heads is 2"),
        (["--ranks", "2", "--model", "nope"], "no checkpoint is called 'nope'"),
        (["--ranks", "2", "--max-model-len", "9999"], "max_model_len must be from 1 to 2048"),  # by rank 0
        (["--ranks", "2", "--host", "192.0.2.1", "--no-auth"], "cannot listen"),
    ],
)
def test_what_it_refuses(options: list[str], sentence: str) -> None:
    assert sentence in refused(*options)


def test_an_uneven_division_is_refused_before_any_rank_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "leave_torch_out", lambda: None)  # it would, for all tests
    monkeypatch.setattr(ranks, "run_ranks", lambda *_: pytest.fail("ranks were started"))
    with pytest.raises(SystemExit) as exit:
        serve.main(**asdict(ServeOptions(ranks=3)))
    assert exit.value.code == 2


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        error = refused("--ranks", "2", "--port", str(listener.getsockname()[1]))
    assert "choose another --host or --port" in error


def broken_checkpoint(folder: Path, name: str) -> str:
    """A copy of the model in which a file cannot be read."""
    for path in (ROOT / "models" / MODEL).glob("*.*"):
        (folder / path.name).write_bytes(b"{" if path.name == name else path.read_bytes())
    return str(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_checkpoint_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    assert str(tmp_path) in refused("--ranks", "2", "--model", broken_checkpoint(tmp_path, name))


ONE_CHECKPOINT_EACH = """
import os, runpy, sys
sys.argv[1:] = ["--port", "0", "--model", sys.argv[1 + int(os.environ["MLX_RANK"])]]
runpy.run_module("scripts.run.serve", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("broken", [0, 1])
def test_a_checkpoint_that_only_one_rank_cannot_read(
    broken: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoints = [str(ROOT / "models" / MODEL)] * 2
    checkpoints[broken] = broken_checkpoint(tmp_path, "model.safetensors")
    assert ranks.run_ranks([sys.executable, "-c", ONE_CHECKPOINT_EACH, *checkpoints], 2) == 2
    output = capfd.readouterr().err
    (error,) = (line for line in without_ring(output) if line.startswith("error: "))
    assert str(tmp_path) in error
    assert "Traceback" not in output


def test_mlx_launch_starts_it_too(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    launcher = str(Path(sys.executable).with_name("mlx.launch"))
    options = ("-n", "2", "--backend", "ring", "--starting-port", port, "--")
    with rank_server(tmp_path / "log", launcher=(launcher, *options)) as server:
        assert server.complete("And", **GREEDY)["usage"]["completion_tokens"] == 40
        server.ranks[0].send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert "Traceback" not in server.text
