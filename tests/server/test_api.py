"""What clients send and get: fields, errors, answers and streams."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from scripts.course import ROOT
from scripts.setup import load_toml
from tests.server.servers import MODEL, SECONDS, app_of, client_of, in_memory, on_socket, wait_for
from tests.support.fakes import continuation
from tests.support.server_engines import failing, make_engine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = {"model": MODEL, "prompt": "HELLO"}
MESSAGES = {"model": MODEL, "messages": [{"role": "user", "content": "HELLO"}]}


def text_of(prompt: str, number: int) -> str:
    """What the fake continues a prompt with."""
    return "".join(chr(64 + token) for token in continuation([ord(each) - 64 for each in prompt], number))


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with in_memory(app_of()) as client:
        yield client


def check_alive(client: TestClient) -> None:
    """The server is healthy, and the next request succeeds."""
    assert client.get("/health").status_code == 200
    response = client.post(COMPLETIONS, json=PROMPT | {"max_tokens": 3, "temperature": 0})
    assert response.json()["choices"][0]["text"] == text_of("HELLO", 3)


def events_of(response: Any) -> list[Any]:
    """The data of a stream's events, without comments."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


NAN = b'{"model": "fake", "prompt": "A", "temperature": NaN}'
DEEP = b'{"model": "fake", "prompt": "A", "logit_bias": ' + b'{"1":' * 100_000
DEEP_IGNORED = b'{"model": "fake", "prompt": "A", "metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        # what ends or confuses mlx-lm's server
        (COMPLETIONS, PROMPT | {"prompt": ["A", "B"]}, 200, None),
        (COMPLETIONS, PROMPT | {"prompt": ""}, 400, "prompt"),
        (COMPLETIONS, PROMPT | {"stop": 5}, 400, "stop"),
        (COMPLETIONS, PROMPT | {"stop": [5]}, 400, "stop[0]"),
        (COMPLETIONS, PROMPT | {"top_k": 1_000_000}, 200, None),
        (COMPLETIONS, b'{"model": "fake", "prompt": "\xff\xfe"}', 400, None),
        (COMPLETIONS, b"\xff\xfe\x00", 400, None),
        (COMPLETIONS, DEEP, 400, "logit_bias"),
        (COMPLETIONS, DEEP_IGNORED, 400, None),
        (COMPLETIONS, PROMPT | {"seed": -1}, 200, None),
        (COMPLETIONS, PROMPT | {"seed": 2**70}, 400, "seed"),
        (COMPLETIONS, PROMPT | {"n": 2}, 200, None),
        (CHAT, MESSAGES | {"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema"),
        (COMPLETIONS, PROMPT | {"echo": True}, 200, None),
        (CHAT, MESSAGES | {"messages": [{"role": "king", "content": "A"}]}, 400, "messages[0].role"),
        (COMPLETIONS, NAN, 400, None),
        (COMPLETIONS, PROMPT | {"logit_bias": {"61": 1}}, 400, "logit_bias"),
        (COMPLETIONS, PROMPT | {"temperature": None}, 200, None),
        (COMPLETIONS, PROMPT | {"logprobs": 3}, 200, None),
        (COMPLETIONS, PROMPT | {"prompt": [1, 2, 3]}, 200, None),
        (COMPLETIONS, PROMPT | {"prompt": [[1, 2], [3]]}, 200, None),
        (COMPLETIONS, PROMPT | {"stream": True, "stream_options": {}}, 200, None),
        # prompts
        (COMPLETIONS, PROMPT | {"prompt": []}, 400, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": [[]]}, 400, "prompt[0]"),
        (COMPLETIONS, PROMPT | {"prompt": ["A", ""]}, 400, "prompt[1]"),
        (COMPLETIONS, PROMPT | {"prompt": ["A", [1]]}, 200, None),
        (COMPLETIONS, PROMPT | {"prompt": [True]}, 400, "prompt[0]"),
        (COMPLETIONS, PROMPT | {"prompt": [-1]}, 400, "prompt[0]"),
        (COMPLETIONS, PROMPT | {"prompt": [61]}, 400, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": None}, 400, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": "A" * 41}, 400, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": ["A"] * 65}, 400, "prompt"),
        (CHAT, MESSAGES | {"messages": []}, 400, "messages"),
        (CHAT, MESSAGES | {"messages": [{"role": "user", "content": "A" * 50}]}, 400, "messages"),
        (CHAT, MESSAGES | {"messages": [{"role": "user", "content": "A" * 38}]}, 400, "messages"),
        (CHAT, MESSAGES | {"messages": [{"role": "user", "content": "A" * 37}]}, 200, None),
        (
            CHAT,
            MESSAGES | {"messages": [{"role": "user", "content": [{"type": "text", "text": "A"}]}]},
            200,
            None,
        ),
        (
            CHAT,
            MESSAGES | {"messages": [{"role": "user", "content": [{"type": "image_url", "text": "A"}]}]},
            400,
            "messages[0].content[0].type",
        ),
        # sampling and limits
        (COMPLETIONS, PROMPT | {"max_tokens": 0}, 400, "max_tokens"),
        (COMPLETIONS, PROMPT | {"max_tokens": -1}, 200, None),
        (COMPLETIONS, PROMPT | {"max_tokens": -2}, 400, "max_tokens"),
        (CHAT, MESSAGES | {"max_tokens": 0}, 400, "max_tokens"),
        (CHAT, MESSAGES | {"max_tokens": -1}, 200, None),
        (COMPLETIONS, PROMPT | {"max_tokens": 36}, 400, "prompt"),
        (COMPLETIONS, PROMPT | {"max_tokens": 35}, 200, None),
        (COMPLETIONS, PROMPT | {"max_tokens": 3.5}, 400, "max_tokens"),
        (COMPLETIONS, PROMPT | {"temperature": -1}, 400, "temperature"),
        (COMPLETIONS, PROMPT | {"temperature": 1e999}, 400, "temperature"),
        (COMPLETIONS, PROMPT | {"temperature": True}, 400, "temperature"),
        (COMPLETIONS, PROMPT | {"top_p": 0}, 400, "top_p"),
        (COMPLETIONS, PROMPT | {"top_p": 1}, 200, None),
        (COMPLETIONS, PROMPT | {"top_k": -1}, 200, None),
        (COMPLETIONS, PROMPT | {"top_k": -2}, 400, "top_k"),
        (COMPLETIONS, PROMPT | {"min_p": 2}, 400, "min_p"),
        (COMPLETIONS, PROMPT | {"n": 0}, 400, "n"),
        (COMPLETIONS, PROMPT | {"n": 65}, 400, "n"),
        (COMPLETIONS, PROMPT | {"logprobs": 6}, 400, "logprobs"),
        (COMPLETIONS, PROMPT | {"logprobs": 0}, 200, None),
        (COMPLETIONS, PROMPT | {"logprobs": 1, "echo": True}, 200, None),
        (COMPLETIONS, PROMPT | {"best_of": 2}, 400, "best_of"),
        (COMPLETIONS, PROMPT | {"best_of": 1}, 200, None),
        (COMPLETIONS, PROMPT | {"suffix": "A"}, 400, "suffix"),
        (COMPLETIONS, PROMPT | {"stop": ["A", ""]}, 400, "stop[1]"),
        (COMPLETIONS, PROMPT | {"stop": []}, 200, None),
        (COMPLETIONS, PROMPT | {"logit_bias": {"x": 1}}, 400, "logit_bias"),
        (COMPLETIONS, PROMPT | {"logit_bias": {"1": 101}}, 400, "logit_bias"),
        (COMPLETIONS, PROMPT | {"stop_token_ids": [61]}, 400, "stop_token_ids"),
        (COMPLETIONS, PROMPT | {"min_tokens": 17}, 400, "min_tokens"),
        (COMPLETIONS, PROMPT | {"repetition_penalty": 0}, 400, "repetition_penalty"),
        (COMPLETIONS, PROMPT | {"presence_penalty": 2.1}, 400, "presence_penalty"),
        (COMPLETIONS, PROMPT | {"priority": -1}, 400, "priority"),
        (COMPLETIONS, PROMPT | {"priority": 1}, 400, "priority"),
        (COMPLETIONS, PROMPT | {"priority": 0}, 200, None),
        (COMPLETIONS, b'{"model": "fake", "prompt": "\\ud800"}', 400, None),
        (
            CHAT,
            MESSAGES | {"chat_template_kwargs": {"tokenize": False}},
            400,
            "chat_template_kwargs.tokenize",
        ),
        (COMPLETIONS, PROMPT | {"ignore_eos": True, "stop_token_ids": [3]}, 400, "ignore_eos"),
        (CHAT, MESSAGES | {"top_logprobs": 3}, 400, "top_logprobs"),
        (CHAT, MESSAGES | {"top_logprobs": 0}, 200, None),
        (CHAT, MESSAGES | {"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
        (CHAT, MESSAGES | {"logprobs": True, "top_logprobs": 20, "max_tokens": 2}, 200, None),
        (CHAT, MESSAGES | {"max_tokens": 3, "max_completion_tokens": 4}, 400, "max_tokens"),
        (CHAT, MESSAGES | {"max_tokens": None, "max_completion_tokens": 4}, 200, None),
        # streams, ignored, refused and unknown fields
        (COMPLETIONS, PROMPT | {"stream_options": {"include_usage": True}}, 200, None),
        (
            COMPLETIONS,
            PROMPT | {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            400,
            "stream_options.continuous_usage_stats",
        ),
        (CHAT, MESSAGES | {"user": "me", "metadata": {"a": "b"}, "store": False, "max_tokens": 1}, 200, None),
        (CHAT, MESSAGES | {"audio": {"voice": "x"}}, 400, "audio"),
        (CHAT, MESSAGES | {"modalities": ["text", "audio"]}, 400, "modalities[1]"),
        (CHAT, MESSAGES | {"tools": [{"type": "function"}]}, 400, "tools[0].function"),
        (CHAT, {"messages": MESSAGES["messages"]}, 400, "model"),
        (CHAT, MESSAGES | {"model": "gpt"}, 404, "model"),
        (CHAT, MESSAGES | {"model": "alias", "max_tokens": 1}, 200, None),
        (CHAT, b"", 400, None),
        (CHAT, b"[]", 400, None),
        (CHAT, b"null", 400, None),
    ],
)
def test_requests(client: TestClient, path: str, body: Any, status: int, param: str | None) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).replace("Infinity", "1e999").encode()
    response = client.post(path, content=content)
    assert response.status_code == status, response.text
    if status != 200:
        error = response.json()["error"]
        assert list(error) == ["message", "type", "param", "code"]
        assert error["param"] == param, error
        assert error["message"]
    check_alive(client)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", COMPLETIONS, 405),
        ("GET", "/v1/models/nope", 404),
        ("GET", "/v1/models/fake", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/metrics", 200),
        ("HEAD", "/health", 200),
        ("GET", "/", 200),
        ("GET", "/openapi.json", 200),
    ],
)
def test_paths(client: TestClient, method: str, path: str, status: int) -> None:
    response = client.request(method, path)
    assert response.status_code == status
    if status >= 400:
        assert list(response.json()["error"]) == ["message", "type", "param", "code"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3, "seed": 4, "temperature": 1.5},
        {"stop": ["C", "MN"]},
        {"max_tokens": 1},
        {"logit_bias": {"7": 100}},
        {"n": 2, "stop": "Z", "temperature": 2, "seed": -9, "top_k": 40},
    ],
)
def test_a_stream_has_the_text_of_the_whole_answer(
    client: TestClient, path: str, fields: dict[str, Any]
) -> None:
    body = (PROMPT if path == COMPLETIONS else MESSAGES) | {"max_tokens": 20, "temperature": 0} | fields
    whole = client.post(path, json=body).json()
    chunks = events_of(
        client.post(path, json=body | {"stream": True, "stream_options": {"include_usage": True}})
    )
    assert chunks.pop() == "[DONE]"
    last = chunks.pop()
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert {len(chunk["choices"]) for chunk in chunks} == {1}
    assert all("usage" in chunk and chunk["usage"] is None for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    for choice in whole["choices"]:
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        text = "".join(
            each["text"] if path == COMPLETIONS else each["delta"].get("content", "") for each in mine
        )
        assert text == (choice["text"] if path == COMPLETIONS else choice["message"]["content"])
        assert [each["finish_reason"] for each in mine] == [None] * (len(mine) - 1) + [
            choice["finish_reason"]
        ]
        if path == CHAT:
            assert [each["delta"].get("role") for each in mine] == ["assistant"] + [None] * (len(mine) - 1)


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, PROMPT), (CHAT, MESSAGES)])
def test_every_chunk_can_have_the_usage_so_far(
    client: TestClient, path: str, body: dict[str, Any]
) -> None:  # guidellm asks for it
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = body | {"max_tokens": 9, "ignore_eos": True, "stream": True, "stream_options": options}
    *chunks, done = events_of(client.post(path, json=body))
    assert done == "[DONE]"
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == 9
    assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks}) == 1


def test_the_answers_of_n_differ_and_share_the_prompt(client: TestClient) -> None:
    body = PROMPT | {"prompt": ["A" * 17, "B" * 17], "n": 3, "temperature": 1.9, "seed": 1}
    body |= {"max_tokens": 9, "ignore_eos": True}
    before = hits_of(client)
    answer = client.post(COMPLETIONS, json=body).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert len({choice["text"] for choice in answer["choices"]}) == 6
    assert answer["usage"]["prompt_tokens"] == 34
    assert answer["usage"]["completion_tokens"] == 6 * 9
    assert answer["usage"]["total_tokens"] == 34 + 6 * 9
    assert hits_of(client) - before == 4 * 16
    again = client.post(COMPLETIONS, json=body).json()
    assert [choice["text"] for choice in again["choices"]] == [choice["text"] for choice in answer["choices"]]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 32


def hits_of(client: TestClient) -> float:
    return metric(client, "vllm:prefix_cache_hits_total")


def metric(client: TestClient, name: str) -> float:
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_logprobs_of_both_kinds(client: TestClient) -> None:
    old = client.post(
        COMPLETIONS, json=PROMPT | {"prompt": "UHELLOA", "logprobs": 2, "temperature": 0}
    ).json()
    new = client.post(
        CHAT, json=MESSAGES | {"logprobs": True, "top_logprobs": 2, "temperature": 0, "max_tokens": 16}
    )
    tokens = new.json()["choices"][0]["logprobs"]["content"]
    logprobs = old["choices"][0]["logprobs"]
    assert (
        "".join(logprobs["tokens"]) == old["choices"][0]["text"] == "".join(each["token"] for each in tokens)
    )
    assert logprobs["token_logprobs"] == [each["logprob"] for each in tokens]
    assert logprobs["text_offset"] == list(range(16))
    for each, top in zip(tokens, logprobs["top_logprobs"], strict=True):
        assert {likely["token"]: likely["logprob"] for likely in each["top_logprobs"]} == top
        assert each["bytes"] == list(each["token"].encode())


def test_echo_comes_first(client: TestClient) -> None:
    body = PROMPT | {"prompt": ["AB", [3, 4]], "echo": True, "n": 2, "max_tokens": 2, "temperature": 0}
    texts = [choice["text"] for choice in client.post(COMPLETIONS, json=body).json()["choices"]]
    assert texts == ["AB" + text_of("AB", 2)] * 2 + ["CD" + text_of("CD", 2)] * 2


def test_tokenize_and_back(client: TestClient) -> None:
    tokens = client.post("/tokenize", json={"prompt": "AB"}).json()
    assert tokens == {"tokens": [1, 2], "count": 2, "max_model_len": 40}
    assert client.post("/tokenize", json={"messages": MESSAGES["messages"]}).json()["count"] == 7
    assert client.post("/detokenize", json={"tokens": [1, 2]}).json() == {"prompt": "AB"}
    assert client.post("/detokenize", json={"tokens": [61]}).status_code == 400
    assert client.post("/tokenize", json={}).status_code == 400


def test_ignore_eos_goes_on() -> None:
    with in_memory(app_of(lambda: make_engine(eos_token_ids=tuple(range(0, 61, 2))))) as client:
        body = PROMPT | {"max_tokens": 9, "temperature": 0}
        assert client.post(COMPLETIONS, json=body).json()["usage"]["completion_tokens"] < 9
        answer = client.post(COMPLETIONS, json=body | {"ignore_eos": True}).json()
        assert answer["usage"]["completion_tokens"] == 9
        assert answer["choices"][0]["finish_reason"] == "length"


def test_a_body_that_is_too_large() -> None:
    with in_memory(app_of(max_body_bytes=100)) as client:
        body = json.dumps(PROMPT | {"user": "x" * 100}).encode()
        assert client.post(COMPLETIONS, content=body).status_code == 413
        assert client.post(COMPLETIONS, content=iter([body[:60], body[60:]])).status_code == 413
        check_alive(client)


@pytest.mark.parametrize("sent", [b"", b'{"model":'])
@pytest.mark.parametrize("head", [b"Content-Length: 50", b"Transfer-Encoding: chunked"])
def test_a_body_that_does_not_arrive(head: bytes, sent: bytes) -> None:
    piece = b"%x\r\n%b\r\n" % (len(sent), sent) if sent and b"chunked" in head else sent
    with on_socket(app_of(body_timeout=0.2)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), SECONDS) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n%b" % (head, piece)
            )
            answer = b"".join(iter(lambda: connection.recv(4096), b""))  # to the end of the connection
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"request_timeout"' in answer


def test_a_request_that_fails_alone_gets_500_and_others_their_answers() -> None:
    make = lambda: failing(make_engine(), lambda output: any(61 - 6 in e.token_ids for e in output.entries))  # noqa: E731
    with in_memory(app_of(make)) as client:
        response = client.post(COMPLETIONS, json=PROMPT | {"prompt": [55]})
        assert response.status_code == 500
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "step_failed")
        events = events_of(client.post(COMPLETIONS, json=PROMPT | {"prompt": [55], "stream": True}))
        assert [list(event) for event in events] == [["error"]]
        response = client.post(COMPLETIONS, json=PROMPT | {"prompt": [1], "max_tokens": 1, "temperature": 0})
        assert response.json()["choices"][0]["text"] == text_of("A", 1)
        assert metric(client, "vllm:num_failed_steps_total") == 4


def test_an_engine_that_is_gone() -> None:
    app = app_of()
    with in_memory(app) as client:
        app.state.server.client._thread.stop()
        wait_for(lambda: client_of(app).state == "stopped")
        assert client.post(COMPLETIONS, json=PROMPT).status_code == 503
        assert client.get("/health").status_code == 503


@pytest.mark.parametrize(
    ("header", "status"),
    [("Bearer k", 200), ("Bearer K", 401), ("bearer k", 401), ("k", 401), ("", 401), ("Bearer ké", 401)],
)
def test_api_key(header: str, status: int) -> None:
    with in_memory(app_of(api_key="k")) as client:
        response = client.get("/v1/models", headers={"Authorization": header.encode()})
        assert response.status_code == status
        assert client.get("/health").status_code == 200
        if status == 401:
            assert list(response.json()["error"]) == ["message", "type", "param", "code"]
            assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("header", "status"), [("Bearer ké", 200), ("Bearer ke", 401), ("Bearer kê", 401)])
def test_an_api_key_beyond_ascii(header: str, status: int) -> None:
    with in_memory(app_of(api_key="ké")) as client:
        response = client.get("/v1/models", headers={"Authorization": header.encode()})
        assert response.status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8000", 200),
        ("LOCALHOST:80", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("evil.example", 400),
        ("localhost.evil.example:8000", 400),
        ("[::1", 400),
        ("", 400),
    ],
)
def test_only_requests_to_this_machine_without_a_key(client: TestClient, host: str, status: int) -> None:
    response = client.get("/v1/models", headers={"Host": host})
    assert response.status_code == status
    if status == 400:
        assert list(response.json()["error"]) == ["message", "type", "param", "code"]
        assert response.json()["error"]["code"] == "invalid_host"


@pytest.mark.parametrize("settings", [{"api_key": "k"}, {"host": "0.0.0.0", "no_auth": True}])
def test_any_name_with_a_key_or_for_all(settings: dict[str, Any]) -> None:
    with in_memory(app_of(**settings)) as client:
        headers = {"Host": "my.example", "Authorization": "Bearer k"}
        assert client.get("/v1/models", headers=headers).status_code == 200


def test_when_the_server_is_full() -> None:
    with in_memory(app_of(max_num_queued_reqs=0)) as client:
        assert client.post(COMPLETIONS, json=PROMPT | {"n": 5}).status_code == 400
        assert client.post(COMPLETIONS, json=PROMPT | {"n": 4}).status_code == 200
        client_of(client.app).admission.reserve(1)  # type: ignore[arg-type]
        response = client.post(COMPLETIONS, json=PROMPT | {"n": 4})
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["type"] == "rate_limit_error"
        assert metric(client, "vllm:admission_rejections_total") == 1
        check_alive(client)


def test_the_version_is_that_of_the_project(client: TestClient) -> None:
    project = load_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert client.get("/version").json() == {"version": project["version"]}
    assert client.get("/openapi.json").json()["info"]["version"] == project["version"]


def test_the_description_names_every_field_of_its_own(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    schemas = described["components"]["schemas"]
    assert {"prompt", "temperature", "n", "logit_bias"} <= schemas["CompletionRequest"]["properties"].keys()
    assert "use_beam_search" not in schemas["CompletionRequest"]["properties"]  # nothing to tell clients
    assert schemas["ChatRequest"]["required"] == ["model", "messages"]
    assert set(described["paths"]) >= {COMPLETIONS, CHAT, "/v1/models", "/tokenize"}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/v1/responses", "/v1/messages"])
def test_what_can_stream_is_described_with_its_events(client: TestClient, path: str) -> None:
    content = client.get("/openapi.json").json()["paths"][path]["post"]["responses"]["200"]["content"]
    assert content.keys() == {"application/json", "text/event-stream"}


def test_each_body_has_examples_that_name_a_model(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    posts = {path: each["post"] for path, each in described["paths"].items() if "post" in each}
    assert len(posts) > 6
    for path, post in posts.items():
        content = post["requestBody"]["content"]["application/json"]
        examples = [each["value"] for each in content["examples"].values()]
        assert examples, path
        assert len({example["model"] for example in examples}) == 1, path
    names = described["components"]["schemas"]["ChatRequest"]["properties"]["model"]["enum"]
    assert examples[0]["model"] in names
