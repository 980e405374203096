"""Servers behind vllm-router or sglang-router, unmodified, as `pdm run serve --replicas 2` starts them."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from tests.clients import SAMPLED
from tests.clients.routed import ENVIRONMENT, ROOT, SECONDS, Routed, replica_at, routed, wait_for
from tests.clients.serving import MODEL, expected

pytestmark = SAMPLED
NAME = MODEL.name
PROMPT = "<|im_start|>user\nWho made the world?<|im_end|>\n<|im_start|>assistant\n"
ASKED: Any = [{"role": "user", "content": "Who made the world?"}]


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    with routed(request.param, tmp_path_factory.mktemp("routed") / "log") as started:
        yield started


@pytest.fixture(scope="module")
def client(fleet: Routed) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="any", max_retries=0)


def test_completions_and_chat(client: openai.OpenAI) -> None:
    fields: Any = {"model": NAME, "temperature": 0, "max_tokens": 12}
    answer = client.completions.create(**fields, prompt="In the beginning")
    assert answer.choices[0].text == expected("In the beginning", 12)
    assert answer.usage.completion_tokens == 12
    chunks = client.completions.create(**fields, prompt="In the beginning", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
    said = client.chat.completions.create(**fields, messages=ASKED).choices[0].message.content
    assert said == expected(PROMPT, 12)
    parts = client.chat.completions.create(**fields, messages=ASKED, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == said


def test_responses(client: openai.OpenAI) -> None:
    fields: Any = {"model": NAME, "temperature": 0, "max_output_tokens": 12, "input": ASKED}
    assert client.responses.create(**fields).output_text == expected(PROMPT, 12)
    events = list(client.responses.create(**fields, stream=True))
    assert events[-1].response.output_text == expected(PROMPT, 12)


def test_messages(fleet: Routed) -> None:
    """sglang-router has no such path."""
    client = anthropic.Anthropic(base_url=fleet.url, api_key="any", max_retries=0)
    fields: Any = {"model": NAME, "max_tokens": 12, "messages": ASKED, "extra_body": {"temperature": 0}}
    if fleet.router == "sglang":
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(**fields)
    else:
        assert client.messages.create(**fields).content[0].text == expected(PROMPT, 12)


def test_errors_are_passed_on(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="this server has"):
        client.completions.create(model="gpt-5", prompt="And")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=NAME, prompt="And", temperature=3)


@pytest.mark.parametrize(
    ("path", "of_vllm", "of_sglang"),
    [
        ("/health", "All servers healthy", "OK"),
        ("/readiness", '"healthy_workers":2', '"healthy_workers":2'),
        ("/v1/models", f'"id":"{NAME}"', f'"id":"{NAME}"'),
        ("/get_model_info", f'"served_model_name":"{NAME}"', f'"served_model_name":"{NAME}"'),
        ("/get_server_info", f'"served_model_name":"{NAME}"', '"workers_count":2'),
        ("/ready", '"status":"ready"', None),
        ("/server_info", f'"served_model_name":"{NAME}"', None),
    ],
)
def test_what_a_router_says(fleet: Routed, path: str, of_vllm: str, of_sglang: str | None) -> None:
    response = httpx2.get(f"{fleet.url}{path}", timeout=SECONDS)
    words = of_vllm if fleet.router == "vllm" else of_sglang
    assert response.status_code == (404 if words is None else 200)
    assert (words or "") in response.text


def test_sglang_router_reads_the_load(fleet: Routed) -> None:
    """Both routers ask at /get_load, and each expects another format. vllm-router counts by itself."""
    found = httpx2.get(f"{fleet.url}/get_loads", timeout=SECONDS).json()["workers"]
    assert [each["load"] for each in found] == ([0, 0] if fleet.router == "sglang" else [-1, -1])


def test_metrics(fleet: Routed) -> None:
    """vllm-router passes one replica's metrics on, and sglang-router adds up those of all."""
    path = "/metrics" if fleet.router == "vllm" else "/engine_metrics"
    text = httpx2.get(f"{fleet.url}{path}", timeout=SECONDS).text
    assert re.search(rf'^vllm.request_success_total{{.*model_name="{NAME}".*}} \d', text, re.M)
    if fleet.router == "sglang":
        assert all(f'worker_addr="{url}"' in text for url in fleet.urls)


def test_both_replicas_work(fleet: Routed) -> None:
    with fleet.streaming(1, 1000), fleet.streaming(2, 1000):
        assert fleet.load(1) >= 1
        assert fleet.load(2) >= 1


def healthy(fleet: Routed) -> int:
    """How many replicas a router counts as healthy."""
    found: int = httpx2.get(f"{fleet.url}/readiness", timeout=SECONDS).json()["healthy_workers"]
    return found


def test_a_replica_that_is_lost_costs_only_what_it_streamed(fleet: Routed) -> None:
    """A router repeats what had not begun to stream. The rest of a stream is lost, and its client notices."""
    with fleet.streaming(1, 2000) as stream, ThreadPoolExecutor() as pool:
        answers = [pool.submit(fleet.complete, stream.prompt, 500) for _ in range(2)]
        wait_for(lambda: fleet.load(1) >= 3)
        fleet.lose(1)
        assert [answer.result() for answer in answers] == [200, 200]
        with pytest.raises(httpx2.RemoteProtocolError):
            list(stream.lines)
    wait_for(lambda: "error: replica 1 was ended by SIGKILL; the others go on\n" in fleet.text)
    assert [fleet.complete(stream.prompt) for _ in range(8)] == [200] * 8


def test_a_replica_that_comes_back_and_is_drained(fleet: Routed) -> None:
    """It gets requests again, and after SIGTERM no more, while its answer goes on to the end."""
    fleet.lose(1)
    wait_for(lambda: healthy(fleet) == 1)
    with replica_at(fleet.urls[0]) as process:
        wait_for(lambda: healthy(fleet) == 2)
        with fleet.streaming(1, 1000) as stream:
            process.send_signal(signal.SIGTERM)
            wait_for(lambda: httpx2.get(f"{fleet.urls[0]}/ready", timeout=SECONDS).status_code == 503)
            assert [fleet.complete(stream.prompt) for _ in range(8)] == [200] * 8
            assert "data: [DONE]" in stream.lines
        assert process.wait(SECONDS) == 0


def test_the_end(fleet: Routed) -> None:
    """It is orderly after a signal; and if the launcher is killed, all end."""
    number = signal.SIGTERM if fleet.router == "vllm" else signal.SIGKILL
    fleet.process.send_signal(number)
    assert fleet.process.wait(SECONDS) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    assert not fleet.left()
    assert "Traceback" not in fleet.text


def test_conversations_stay_where_their_events_come_from() -> None:
    """vllm-router follows the events: each turn finds all that was said, as the simulator predicts."""
    command = [sys.executable, "-m", "benches", "routing", "--measured", "--policy", "kv_aware"]
    result = subprocess.run(
        [*command, "--users", "2", "--turns", "3"], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    found, predicted = map(float, re.findall(r"([0-9.]+)%", result.stdout))
    assert found > 60  # with turns here and there, less than 30
    assert predicted == pytest.approx(found, rel=0.1)
