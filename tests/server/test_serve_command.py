"""`pdm run serve`: what it refuses, how it starts, and how it ends."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from http_server.run_server import KEEP_ALIVE_SECONDS, listen
from tests.support.commands import run
from tests.support.terminals import CTRL_C, Terminal

ROOT = Path(__file__).parents[2]
SECONDS = 60
MODEL = "qwen3-kjv-4m"
SERVE = "scripts.run.serve"
KV_EVENTS = '{"enable_kv_cache_events": true}'


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", SERVE, *options]


@contextmanager
def serving(*options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    port = free_port()
    process = subprocess.Popen(
        command("--port", str(port), *options),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + SECONDS
        while True:
            assert process.poll() is None, process.stderr.read()  # type: ignore[union-attr]
            assert time.monotonic() < end
            try:
                if httpx2.get(f"{url}/ready").status_code == 200:
                    break
            except httpx2.TransportError:
                pass
            time.sleep(0.05)
        yield process, url
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--model", "nope"], "nope"),
        (["--host", "0.0.0.0"], "--api-key"),
        (["--host", "192.0.2.1", "--no-auth"], "cannot listen"),
        (["--max-num-seqs", "9", "--max-num-batched-tokens", "8"], "max_num_batched_tokens 8"),
        (["--max-model-len", "9999", "--port", "0"], "max_model_len must be from 1 to 2048"),
        (["--num-gpu-blocks-override", "3", "--port", "0"], "too few"),
        (["--num-gpu-blocks-override", "100000000", "--port", "0"], "100000000 blocks need 9155.3 GiB"),
        (["--api-key", " "], "api_key"),
        (["--port", "70000"], "--port"),
        (["--max-num-queued-reqs", "-1"], "--max-num-queued-reqs"),
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--kv-cache-gb", "4"], "--kv-cache-gb needs --kv-cache-dir"),
        (["--kv-cache-dir", "README.md"], "choose another --kv-cache-dir"),
        (["--kv-cache-dir", "kept", "--kv-cache-gb", "0"], "--kv-cache-gb must be above 0"),
        (["--kv-cache-dir", "kept", "--ranks", "2"], "leave out --ranks"),
        (["--kv-cache-dir", "kept", "--no-enable-prefix-caching"], "leave out --no-enable-prefix-caching"),
        (["--num-speculative-tokens", "4"], "--num-speculative-tokens needs --speculation"),
        (["--draft-model", "qwen3-kjv-1m"], "--draft-model needs --speculation draft-model"),
        (["--draft-model", "qwen3-kjv-1m", "--speculation", "lookup"], "--speculation draft-model"),
        (["--speculation", "draft-model", "--draft-model", "nope"], "nope"),
        (["--served-model-name", ""], "--served-model-name"),
        (["--served-model-name", "a", "--served-model-name", "a"], "must differ"),
        (["--api-key", ""], "api_key"),
        (["--api-key", "key "], "spaces"),
        (["--api-key", "key", "--no-auth"], "--no-auth"),
        (["--allowed-origins", "https://example.org/"], "an allowed origin"),
        (["--kv-bits", "5"], "--kv-bits"),
        (["--kv-events-config", "tcp://*:5557"], "--kv-events-config must be a JSON object"),
        (["--kv-events-config", '{"endpont": ""}'], "unknown field `endpont`"),
        (["--kv-events-config", KV_EVENTS, "--no-enable-prefix-caching"], "leave out --no-enable-prefix"),
        (["--router", "vllm"], "--router needs --replicas 2 or more"),
        (["--router-policy", "round_robin"], "--router-policy needs --replicas 2 or more"),
    ],
)
def test_what_it_refuses(options: list[str], sentence: str) -> None:
    result = run(SERVE, *options)
    assert result.returncode == 2, result.stderr
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def copied(folder: Path, name: str, **contents: bytes) -> str:
    """A copy of a shipped checkpoint, in which some files, named by their stems, are different."""
    for path in (ROOT / "models" / name).glob("*.*"):
        changed = contents.get(path.stem)
        (folder / path.name).write_bytes(path.read_bytes() if changed is None else changed)
    return str(folder)


@pytest.mark.parametrize("stem", ["config", "model", "tokenizer"])
def test_a_checkpoint_that_cannot_be_read(stem: str, tmp_path: Path) -> None:
    broken = {stem: b"{"}
    options = ["--model", copied(tmp_path, MODEL, **broken), "--port", "0"]
    result = run(SERVE, *options)
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_a_draft_model_with_another_tokenizer(tmp_path: Path) -> None:
    tokenizer = (ROOT / "models" / "qwen3-kjv-1m" / "tokenizer.json").read_text()
    other = json.loads(tokenizer)
    other["normalizer"] = {"type": "Lowercase"}
    draft = copied(tmp_path, "qwen3-kjv-1m", tokenizer=json.dumps(other).encode())
    options = ["--speculation", "draft-model", "--draft-model", draft, "--port", "0"]
    result = run(SERVE, *options)
    assert result.returncode == 2, result.stderr
    assert result.stderr == (
        "error: the draft model has another tokenizer than the model: choose one with the same\n"
    )


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        result = subprocess.run(
            command("--port", port), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
        )
    assert result.returncode == 2
    assert "choose another --host or --port" in result.stderr


def test_a_port_for_kv_events_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        config = json.dumps({"enable_kv_cache_events": True, "endpoint": endpoint})
        result = run(SERVE, "--kv-events-config", config, "--port", "0")
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: KV events cannot use {endpoint}: Address ")
    assert result.stderr.count("\n") == 1


def test_it_says_where_it_is_what_the_model_can_do_and_which_one_chats() -> None:
    with serving() as (process, url):
        lines = [process.stderr.readline() for _ in range(3)]  # type: ignore[union-attr]
    assert lines[0].endswith(f" ready: {MODEL} on {url}\n")
    assert "nothing but the King James Bible" in lines[1]
    assert lines[2].endswith(": pdm run serve --model smollm2\n")


def test_of_a_model_from_elsewhere_it_says_where_it_is(tmp_path: Path) -> None:
    folder = copied(tmp_path, MODEL)
    with serving("--model", folder, "--served-model-name", "mine") as (process, url):
        process.send_signal(signal.SIGTERM)
        ready, *rest = process.stderr.read().splitlines()  # type: ignore[union-attr]
    assert ready.endswith(f" ready: mine on {url}")
    assert ["draining" in line for line in rest] == [True]


def test_ctrl_c_in_a_terminal_has_a_line_of_its_own() -> None:
    code = "import runpy\nrunpy.run_module('scripts.run.serve', run_name='__main__', alter_sys=True)"
    terminal = Terminal(code, "--port", "0")
    try:
        terminal.wait_for("--model smollm2")
        terminal.press(CTRL_C)
        assert terminal.exit_code() == 0
        *_, echo, draining = terminal.screen()
        assert echo == "^C"
        assert " draining: " in draining
    finally:
        terminal.close()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_drains(sent: signal.Signals) -> None:
    # on the CPU, since an emulated GPU may need more than the 300 s after which answers are cut off
    with serving(TINY_LLM_DEVICE="cpu") as (process, url):
        body = {"model": MODEL, "prompt": "And", "max_tokens": 600, "ignore_eos": True, "stream": True}
        with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=SECONDS) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(sent)
            while httpx2.get(f"{url}/ready").status_code == 200:
                time.sleep(0.01)
            refused = httpx2.post(f"{url}/v1/completions", json=body)  # from a connection after the signal
            rest = list(lines)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert refused.headers["retry-after"]
        assert "data: [DONE]" in rest
        assert any('"finish_reason":"length"' in line for line in rest)
        assert process.wait(SECONDS) == 0
        log = process.stderr.read()  # type: ignore[union-attr]
        assert "tokens=600" in log
        assert "Traceback" not in log


def test_the_second_signal_exits_at_once() -> None:
    with serving() as (process, url):
        body = {"model": MODEL, "prompt": "And", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with (
            suppress(httpx2.TransportError),  # the connection ends with the process
            httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=SECONDS) as response,
        ):
            for number, _ in enumerate(response.iter_lines()):
                if number in (1, 9):
                    process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 128 + signal.SIGINT  # 0 if the stream had ended first


def test_a_pool_that_overcommits_preempts() -> None:
    options = "--overcommit", "--num-gpu-blocks-override", "8", "--max-model-len", "128"
    with serving(*options, TINY_LLM_DEVICE="cpu") as (_, url):

        def complete(prompt: str) -> str:
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 100, "ignore_eos": True, "temperature": 0}
            response = httpx2.post(f"{url}/v1/completions", json=body, timeout=SECONDS)
            return str(response.json()["choices"][0]["text"])

        prompts = ["And", "But", "For"]
        alone = [complete(prompt) for prompt in prompts]
        with ThreadPoolExecutor(len(prompts)) as pool:
            together = list(pool.map(complete, prompts))
        metrics = httpx2.get(f"{url}/metrics").text
    assert together == alone
    (count,) = [line for line in metrics.splitlines() if line.startswith("vllm:num_preemptions_total")]
    assert float(count.split()[-1]) > 0


def test_connections_send_small_pieces_at_once() -> None:
    async def delays() -> int:
        accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(
            lambda _, writer: accepted.set_result(writer), sock=listen("127.0.0.1", 0)
        )
        async with server:
            _, mine = await asyncio.open_connection(*server.sockets[0].getsockname())
            theirs = await accepted
            no_delay = theirs.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for writer in (mine, theirs):
                writer.close()
            return int(no_delay)

    assert asyncio.run(delays()) != 0


def test_settings_from_options() -> None:
    options = [
        "--served-model-name",
        "a",
        "--served-model-name",
        "b",
        "--api-key",
        "key",
        "--max-model-len",
        "64",
    ]
    with serving(*options) as (_, url), httpx2.Client(headers={"Authorization": "Bearer key"}) as client:
        cards = client.get(f"{url}/v1/models").json()["data"]
        assert [(card["id"], card["max_model_len"]) for card in cards] == [("a", 64), ("b", 64)]
        assert httpx2.get(f"{url}/v1/models").status_code == 401


@pytest.mark.parametrize("options", [(), ("--speculation", "lookup")])
def test_quantized_keys_and_values(options: tuple[str, ...]) -> None:
    with serving("--kv-bits", "4", *options, TINY_LLM_DEVICE="cpu") as (_, url):
        body = {"model": MODEL, "prompt": "In the beginning", "max_tokens": 40, "ignore_eos": True}
        body |= {"temperature": 0}
        answers = [httpx2.post(f"{url}/v1/completions", json=body, timeout=SECONDS).json() for _ in range(2)]
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [40, 40]
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]


def test_help_names_every_option() -> None:
    environment = os.environ | {"COLUMNS": "120", "TERM": "dumb"}
    text = subprocess.run(command("--help"), cwd=ROOT, capture_output=True, text=True, env=environment).stdout
    for option in (
        "--host",
        "--port",
        "--max-model-len",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--speculation",
        "qwen3-kjv-1m",
    ):
        assert option in text


STALLED = {
    "model": MODEL,
    "prompt": "And",
    "stream": True,
    "ignore_eos": True,
    "n": 8,
    "max_tokens": 900,
    "logprobs": 5,
}


def stalled(url: str, body: dict[str, object]) -> socket.socket:
    """A connection to a stream that nobody reads."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.connect(("127.0.0.1", int(url.rpartition(":")[2])))
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def test_a_client_that_reads_nothing_does_not_hold_up_the_end() -> None:
    # on the CPU, since an emulated GPU would need many minutes for an answer that fills all buffers
    with serving(TINY_LLM_DEVICE="cpu") as (process, url), stalled(url, STALLED):
        for line in process.stderr:  # type: ignore[union-attr]
            if "tokens=900" in line:
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
        log = process.stderr.read()  # type: ignore[union-attr]
        assert "clients that did not read their answers within 5 s: 1" in log
        assert "Traceback" not in log


def test_draining_ends_at_its_timeout() -> None:
    with serving("--timeout-graceful-shutdown", "0.5") as (process, url):
        body = {
            "model": MODEL,
            "prompt": "And",
            "max_tokens": 2000,
            "ignore_eos": True,
            "n": 8,
            "stream": True,
        }
        with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=SECONDS) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert '"code":"stopped"' in rest[-2] + rest[-1]
        assert process.wait(SECONDS) == 0
        log = process.stderr.read()  # type: ignore[union-attr]
        assert "draining took 0.5 s: 8 answers are cut off" in log
        assert "Traceback" not in log


def test_idle_connections_stay_open_longer_than_clients_keep_them() -> None:
    kept = httpx2.Limits().keepalive_expiry
    assert kept is not None
    assert kept < KEEP_ALIVE_SECONDS


def test_a_killed_server_s_conversations_are_warm_in_the_next_one(tmp_path: Path) -> None:
    answers = []
    for _ in range(2):
        with serving("--kv-cache-dir", str(tmp_path)) as (_, url):
            body = {"model": MODEL, "prompt": "In the beginning God created " * 6, "max_tokens": 5}
            answers.append(
                httpx2.post(f"{url}/v1/completions", json=body | {"temperature": 0}, timeout=SECONDS).json()
            )
            end = time.monotonic() + SECONDS
            while not list(tmp_path.rglob("*.safetensors")):  # then it is killed
                assert time.monotonic() < end
                time.sleep(0.01)
    texts = [answer["choices"][0]["text"] for answer in answers]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert texts[0] == texts[1]
    assert cached[0] == 0 < cached[1]
