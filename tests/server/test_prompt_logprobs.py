"""`echo` with `logprobs`: how likely a prompt is, as harnesses for evaluation ask it."""

import json
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from starlette.testclient import TestClient

from tests.server.servers import MODEL, SECONDS, app_of, client_of, in_memory, wait_for
from tests.server.test_disconnects import gated_server, send
from tests.support.fakes import EOS, FakeModel, prompt_of
from tests.support.server_engines import ENGINES, failing, make_engine

PATH = "/v1/completions"
FIELDS = {"model": MODEL, "echo": True, "logprobs": 2, "temperature": 0, "max_tokens": 1}
EOS_BETWEEN = [5, 9, EOS, 7, EOS, 3]


@pytest.fixture(scope="module", params=[*ENGINES])
def client(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    with in_memory(app_of(ENGINES[request.param])) as client:
        yield client


def scores_of(prompt: list[int]) -> tuple[list[float], list[list[int]]]:
    """The log-probability of each token but the first, and the two likeliest ids, in one pass."""
    logits = FakeModel()(mx.array([prompt]))[0]
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    own = [logprobs[place, token].item() for place, token in enumerate(prompt[1:])]
    likeliest = mx.argsort(-logprobs, axis=-1)[:-1, :2].tolist()
    return own, likeliest


def text_of(ids: list[int]) -> str:
    return "".join(chr(64 + token) for token in ids)


@pytest.mark.parametrize("prompt", [prompt_of(2), prompt_of(11, 3), prompt_of(30, 1), EOS_BETWEEN])
def test_the_scores_of_a_prompt(client: TestClient, prompt: list[int]) -> None:
    response = client.post(PATH, json=FIELDS | {"prompt": prompt})
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    logprobs = choice["logprobs"]
    own, likeliest = scores_of(prompt)
    assert [len(each) for each in logprobs.values()] == [len(prompt) + 1] * 4
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:-1] == pytest.approx(own, abs=1e-4)
    for top, ids in zip(logprobs["top_logprobs"][1:-1], likeliest, strict=True):
        assert set(top) == {text_of([id]) for id in ids}
    assert choice["text"] == "".join(logprobs["tokens"])
    assert choice["text"].startswith(text_of(prompt))
    assert logprobs["text_offset"] == list(range(len(prompt) + 1))
    usage = response.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(prompt), 1)


def test_several_prompts_and_answers_whole_and_streamed(client: TestClient) -> None:
    body = FIELDS | {"prompt": ["HELLO", "A", "BYE"], "n": 2, "max_tokens": 2}
    whole = client.post(PATH, json=body).json()["choices"]
    assert [choice["text"][:1] for choice in whole] == ["H", "H", "A", "A", "B", "B"]
    for choice, length in zip(whole, (5, 5, 1, 1, 3, 3), strict=True):
        assert len(choice["logprobs"]["tokens"]) == length + 2
        assert choice["logprobs"]["token_logprobs"][0] is None
    lines = client.post(PATH, json=body | {"stream": True}).text.split("\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    streamed: dict[int, list[Any]] = {}
    for choice in [choice for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]:
        streamed.setdefault(choice["index"], []).extend(choice["logprobs"]["token_logprobs"])
    assert [streamed[index] for index in range(6)] == [each["logprobs"]["token_logprobs"] for each in whole]


def test_no_token_may_be_asked_for(client: TestClient) -> None:
    for fields, tokens in (({}, list("HELLO")), ({"stream": True}, None), ({"logprobs": None}, None)):
        response = client.post(PATH, json=FIELDS | {"prompt": "HELLO", "max_tokens": 0} | fields)
        assert response.status_code == 200
        if "stream" in fields:
            continue
        answer = response.json()
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("HELLO", "length")
        assert (choice["logprobs"] or {"tokens": None})["tokens"] == tokens
        assert (answer["usage"]["completion_tokens"], answer["usage"]["total_tokens"]) == (0, 5)
    assert client.post(PATH, json=FIELDS | {"prompt": "A", "max_tokens": 0, "echo": False}).status_code == 400


def test_a_token_follows_even_if_the_answer_would_end_at_once() -> None:
    with in_memory(app_of(lambda: make_engine(model=FakeModel(eos_at_length=5)))) as client:
        choice = client.post(PATH, json=FIELDS | {"prompt": "HELLO"}).json()["choices"][0]
        assert len(choice["logprobs"]["token_logprobs"]) == 6


def test_slots_are_counted_and_released() -> None:
    app = app_of(max_num_queued_reqs=0, max_num_queued_tokens=100)
    with in_memory(app) as client:
        admission = client_of(app).admission
        for body in ({"prompt": "HELLO"}, {"prompt": ["A", "BE"], "stream": True}):
            assert client.post(PATH, json=FIELDS | body).status_code == 200
            wait_for(lambda: (admission.num_reqs, admission.num_queued_tokens) == (0, 0))
        full = client.post(PATH, json=FIELDS | {"prompt": ["HELLO"] * (admission.max_num_reqs // 2 + 1)})
        assert full.status_code == 400


def test_how_the_answer_is_sampled_does_not_change_the_scores(client: TestClient) -> None:
    fields = {
        "temperature": 2,
        "top_p": 0.5,
        "frequency_penalty": 2,
        "repetition_penalty": 9,
        "stop": ["L"],
        "min_tokens": 2,
        "max_tokens": 3,
        "logit_bias": {"12": -100},
        "seed": 1,
    }
    plain, changed = (
        client.post(PATH, json=FIELDS | {"prompt": "HELLO"} | each).json()["choices"][0]
        for each in ({}, fields)
    )
    assert changed["text"].startswith("HELLO")
    assert changed["logprobs"]["token_logprobs"][:5] == plain["logprobs"]["token_logprobs"][:5]


def test_a_step_that_fails_is_an_error() -> None:
    app = app_of(lambda: failing(make_engine(), lambda output: True))
    with in_memory(app) as client:
        assert client.post(PATH, json=FIELDS | {"prompt": "HELLO"}).status_code == 500
        admission = client_of(app).admission
        wait_for(lambda: (admission.num_reqs, admission.num_queued_tokens) == (0, 0))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_meanwhile_leaves_nothing(stream: bool) -> None:
    with gated_server() as (url, client, engine, model):
        connection = send(url, FIELDS | {"prompt": "HELLO", "stream": stream})
        for _ in range(2):  # of the four steps that score it
            assert model.is_waiting.acquire(timeout=SECONDS)
            model.gate.release()
        assert model.is_waiting.acquire(timeout=SECONDS)
        connection.close()
        wait_for(lambda: client.admission.num_reqs == 0)
        model.gate.release(1000)
        wait_for(lambda: not engine.requests)
