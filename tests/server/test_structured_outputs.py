"""What a client may demand of an answer: formats, grammars and enforced calls, kept or refused by name."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from http_server import text_codec
from http_server.app import create_app
from http_server.config import ServerConfig
from tests.server.servers import MODEL, client_of, in_memory
from tests.support.engines import drafting_engine
from tests.support.schemas import ByteTokenizer, TableModel
from tests.support.server_engines import SECONDS, failing
from tiny_llm import Engine, PrefixCachingBlockManager, SchedulerConfig

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
MESSAGES = {"model": MODEL, "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 300}
PROMPT = {"model": MODEL, "prompt": "Who?", "max_tokens": 300}
INPUT = {"model": MODEL, "input": "Who?", "max_output_tokens": 300}
KING = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 4},
        "years": {"type": "integer", "minimum": 1, "maximum": 70},
        "of": {"$ref": "#/$defs/land"},
    },
    "required": ["name", "years", "of"],
    "additionalProperties": False,
    "$defs": {"land": {"enum": ["Judah", "Israel"]}},
}
IMPOSSIBLE = {"type": "array", "uniqueItems": True}


class ByteChat(ByteTokenizer):
    """A tokenizer for conversations, whose template has tools."""

    has_chat_template = True
    chat_template = "{{ tools }} <tool_call> arguments"

    def __init__(self) -> None:
        self.options: list[dict[str, Any]] = []

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        self.options.append(options)
        return self.encode(messages[-1]["content"])


def formatted(schema: object, name: str = "king") -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}}


def tool(name: str, parameters: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def make_engine(kind: type[Engine] = Engine) -> Engine:
    """An engine whose model writes any bytes."""
    blocks = PrefixCachingBlockManager(400, 8)
    return kind(TableModel(5), ByteTokenizer(), SchedulerConfig(48, 6), 400, blocks)  # type: ignore[arg-type]


def app_of(
    make: Callable[[], Engine] = make_engine, tokenizer: ByteChat | None = None, **settings: Any
) -> Starlette:
    config = ServerConfig((MODEL,), SchedulerConfig(48, 6), **settings)
    return create_app(make, lambda: tokenizer or ByteChat(), config)  # type: ignore[arg-type, return-value]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with in_memory(app_of()) as client:
        yield client


def texts_of(client: TestClient, path: str, body: dict[str, Any]) -> list[str]:
    """The texts of the choices that ended by themselves; at least one."""
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    choices = [each for each in response.json()["choices"] if each["finish_reason"] == "stop"]
    assert choices, response.text
    return [each["text"] if path == COMPLETIONS else each["message"]["content"] for each in choices]


def test_answers_are_valid_by_their_schema(client: TestClient) -> None:
    for text in texts_of(client, CHAT, MESSAGES | formatted(KING) | {"n": 5, "seed": 1}):
        jsonschema.validate(json.loads(text), KING)


@pytest.mark.parametrize("strict", [None, True, False])
def test_a_schema_is_kept_whatever_strict_says(client: TestClient, strict: bool | None) -> None:
    body = MESSAGES | formatted(KING) | {"seed": 2}
    body["response_format"]["json_schema"] |= {"strict": strict, "description": "A king."}
    for text in texts_of(client, CHAT, body):
        jsonschema.validate(json.loads(text), KING)


def test_any_object(client: TestClient) -> None:
    body = MESSAGES | {"response_format": {"type": "json_object"}, "n": 6, "seed": 3}
    assert all(isinstance(json.loads(text), dict) for text in texts_of(client, CHAT, body))


def test_plain_text_has_no_grammar(client: TestClient) -> None:
    for form in (None, {"type": "text"}):
        response = client.post(CHAT, json=MESSAGES | {"response_format": form, "max_tokens": 9})
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(("path", "body"), [(CHAT, MESSAGES), (COMPLETIONS, PROMPT)])
@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": "[a-c]{2,4}!"}, "[a-c]{2,4}!"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'start: "<" /[a-z]{1,3}/ ">"'}, "<[a-z]{1,3}>"),
        ({"json": {"enum": [1, "x"]}, "disable_any_whitespace": True}, '1|"x"'),
        ({"json": '{"const": null}'}, "null"),
        ({"json_object": True, "regex": None, "disable_fallback": True}, r"\{(?s:.*)\}"),
    ],
)
def test_extras_of_vllm(
    client: TestClient, path: str, body: dict[str, Any], outputs: dict[str, Any], pattern: str
) -> None:
    for text in texts_of(client, path, body | {"structured_outputs": outputs, "n": 4, "seed": 4}):
        assert re.fullmatch(pattern, text), text


def test_a_stream_has_the_same_text(client: TestClient) -> None:
    body = MESSAGES | formatted(KING) | {"seed": 5}
    (whole,) = texts_of(client, CHAT, body)
    lines = client.post(CHAT, json=body | {"stream": True}).text.split("\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks) == whole


def test_responses(client: TestClient) -> None:
    form = {"type": "json_schema", "name": "king", "schema": KING, "strict": True}
    answer = client.post(RESPONSES, json=INPUT | {"text": {"format": form}}).json()
    assert answer["status"] == "completed", answer
    jsonschema.validate(json.loads(answer["output"][0]["content"][0]["text"]), KING)
    assert answer["text"]["format"] == form | {"description": None}
    form = {"type": "json_object"}
    answer = client.post(RESPONSES, json=INPUT | {"text": {"format": form}}).json()
    assert answer["text"] == {"format": form}


WEATHER = {"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"]}
WEATHER |= {"additionalProperties": False, "$defs": {"city": {"enum": ["Ulm", "Köln"]}}}
TOOLS = [tool("weather", WEATHER), tool("clock", {"properties": {}, "additionalProperties": False})]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"tool_choice": "required"}, {"weather", "clock"}),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"weather", "clock"}),
        ({"tool_choice": named("weather")}, {"weather"}),
        ({"tool_choice": named("clock")}, {"clock"}),
    ],
)
def test_calls_are_enforced(client: TestClient, fields: dict[str, Any], names: set[str]) -> None:
    response = client.post(CHAT, json=MESSAGES | fields | {"tools": TOOLS, "n": 6, "seed": 6})
    finished = [each for each in response.json()["choices"] if each["finish_reason"] != "length"]
    assert finished, response.text
    for choice in finished:
        assert choice["finish_reason"] == "tool_calls"
        assert not (choice["message"]["content"] or "").strip()
        calls = [each["function"] for each in choice["message"]["tool_calls"]]
        assert {each["name"] for each in calls} <= names
        assert len(calls) == 1 or fields == {"tool_choice": "required"}
        for call in calls:
            schema = WEATHER if call["name"] == "weather" else {"type": "object"}
            jsonschema.validate(json.loads(call["arguments"]), schema)


def test_no_thoughts_before_a_grammar() -> None:
    tokenizer = ByteChat()
    with in_memory(app_of(tokenizer=tokenizer)) as client:
        for body in (MESSAGES, MESSAGES | formatted(KING), MESSAGES | {"tools": TOOLS}):
            assert client.post(CHAT, json=body | {"max_tokens": 1}).status_code == 200
        body = MESSAGES | {"tools": TOOLS, "tool_choice": "required", "max_tokens": 1}
        assert client.post(CHAT, json=body).status_code == 200
    assert [each.get("enable_thinking") for each in tokenizer.options] == [None, False, None, False]


@pytest.mark.parametrize(
    ("path", "body", "param", "reason"),
    [
        (CHAT, MESSAGES | {"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        (CHAT, MESSAGES | {"response_format": {}}, "response_format.type", "missing"),
        (CHAT, MESSAGES | formatted(KING, "two words"), "response_format.json_schema.name", "invalid"),
        (CHAT, MESSAGES | formatted([1]), "response_format.json_schema.schema", "object"),
        (CHAT, MESSAGES | formatted(IMPOSSIBLE), "response_format", "uniqueItems"),
        (
            CHAT,
            MESSAGES | formatted({"type": "integer", "minimum": 2, "maximum": 1}),
            "response_format",
            "min",
        ),
        (CHAT, MESSAGES | formatted({"$ref": "#/$defs/x"}), "response_format", "x"),
        (RESPONSES, INPUT | {"text": {"format": {"type": "json_schema"}}}, "text.format.name", "missing"),
        (
            RESPONSES,
            INPUT | {"text": {"format": {"type": "json_schema", "name": "a", "schema": IMPOSSIBLE}}},
            "text.format",
            "uniqueItems",
        ),
        (
            COMPLETIONS,
            PROMPT | {"response_format": {"type": "json_object"}},
            "response_format.type",
            "json_object",
        ),
        (
            CHAT,
            MESSAGES | {"response_format": {"type": "json_object", "schema": KING}},
            "response_format.schema",
            "support",
        ),
        *[
            (path, body | {"structured_outputs": outputs}, param, reason)
            for path, body in ((CHAT, MESSAGES), (COMPLETIONS, PROMPT))
            for outputs, param, reason in (
                ({}, "structured_outputs", "exactly one"),
                ({"json_object": False}, "structured_outputs", "exactly one"),
                ({"regex": "a", "choice": ["b"]}, "structured_outputs", "exactly one"),
                ({"json": "[1"}, "structured_outputs", "valid JSON"),
                ({"json": IMPOSSIBLE}, "structured_outputs", "uniqueItems"),
                ({"regex": "(a"}, "structured_outputs", "unclosed group"),
                ({"regex": 5}, "structured_outputs.regex", "str"),
                ({"grammar": "start: foo"}, "structured_outputs", "unknown name"),
                ({"choice": []}, "structured_outputs.choice", "invalid"),
                ({"choice": ["a", ""]}, "structured_outputs.choice[1]", "invalid"),
                ({"structural_tag": "x"}, "structured_outputs.structural_tag", "support"),
                ({"regexp": "x"}, "structured_outputs", "exactly one"),
            )
        ],
        (
            CHAT,
            MESSAGES | formatted(KING) | {"structured_outputs": {"regex": "a"}},
            "structured_outputs",
            "combined",
        ),
        (CHAT, MESSAGES | {"tool_choice": "required"}, "tool_choice", "no tools"),
        (CHAT, MESSAGES | {"tools": TOOLS, "tool_choice": named("news")}, "tool_choice", "news"),
        (
            CHAT,
            MESSAGES | {"tools": [tool("a", IMPOSSIBLE | {"not": {}})], "tool_choice": "required"},
            "tools",
            "not",
        ),
        (
            CHAT,
            MESSAGES | formatted(KING) | {"tools": TOOLS, "tool_choice": "required"},
            "response_format",
            "enforced",
        ),
    ],
)
def test_what_is_refused(
    client: TestClient, path: str, body: dict[str, Any], param: str, reason: str
) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    assert reason in error["message"], error
    assert client_of(client.app).admission.num_reqs == 0  # type: ignore[arg-type]
    assert client.post(COMPLETIONS, json=PROMPT | {"max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("depth", [300, 930, 950, 960, 970, 5000])
@pytest.mark.parametrize(
    "fields",
    [
        '"structured_outputs": {"json": %s}',
        '"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": %s}}',
        '"tools": [{"type": "function", "function": {"name": "a", "parameters": %s}}], '
        '"tool_choice": "required"',
    ],
)
def test_a_schema_that_is_nested_too_deeply(client: TestClient, depth: int, fields: str) -> None:
    start, schema = json.dumps(MESSAGES).removesuffix("}"), '{"items": ' * depth + "{}" + "}" * depth
    response = client.post(CHAT, content=f"{start}, {fields % schema}}}")
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"]


def test_a_grammar_is_compiled_once_while_others_get_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    compiled, may_go = text_codec.compiled, threading.Event()

    def slowly(*args: Any) -> Any:
        names.append(threading.current_thread().name)
        assert may_go.wait(SECONDS)
        return compiled(*args)

    monkeypatch.setattr(text_codec, "compiled", slowly)
    with in_memory(app_of(max_num_queued_reqs=0)) as client, ThreadPoolExecutor(1) as pool:
        bound = pool.submit(client.post, CHAT, json=MESSAGES | formatted(KING) | {"n": 3})
        while not names:
            assert client.get("/health").status_code == 200
        assert client.post(COMPLETIONS, json=PROMPT | {"max_tokens": 5}).status_code == 200
        assert client.post(COMPLETIONS, json=PROMPT | {"n": 4}).status_code == 429, "slots are reserved first"
        may_go.set()
        assert bound.result(SECONDS).status_code == 200
        assert len(names) == 1
        assert names[0].startswith("grammar")


DEAD_END = {
    "type": "object",
    "properties": {"a": {"const": 1}},
    "required": ["a"],
    "additionalProperties": False,
    "patternProperties": {"^a$": {"const": 1}},
}
"""After the first comma, no key may follow: `a` is taken."""
SCHEMA = {"type": "json_schema", "schema": DEAD_END}
DEAD_ENDS: dict[str, dict[str, Any]] = {
    COMPLETIONS: PROMPT | {"structured_outputs": {"json": DEAD_END}},
    CHAT: MESSAGES | formatted(DEAD_END),
    RESPONSES: INPUT | {"text": {"format": SCHEMA | {"name": "a"}}},
    "/v1/messages": MESSAGES | {"output_config": {"format": SCHEMA}},
}


@pytest.mark.parametrize(("path", "body"), DEAD_ENDS.items(), ids=DEAD_ENDS)
def test_a_grammar_that_cannot_go_on_is_an_error_in_every_protocol(path: str, body: dict[str, Any]) -> None:
    class NoEnd(TableModel):
        """A model that never closes an object, and writes no whitespace where anything else is allowed."""

        def logits(self, states: Any) -> Any:
            logits = super().logits(states)
            for byte in b"} \n\t":
                logits[..., byte + 1] -= 100 if byte != ord("}") else 1000
            return logits

    def make() -> Engine:
        blocks = PrefixCachingBlockManager(400, 8)
        return Engine(NoEnd(5), ByteTokenizer(), SchedulerConfig(48, 6), 400, blocks)  # type: ignore[arg-type]

    with in_memory(app_of(make)) as client:
        whole = client.post(path, json=body)
        assert whole.status_code == 400, whole.text
        message = whole.json()["error"]["message"]
        assert re.match(r"the grammar allows nothing after the \d+ tokens of this answer", message)
        stream = client.post(path, json=body | {"stream": True}).text
        assert '"length"' not in stream
        assert '"max_tokens"' not in stream
        assert "the grammar allows nothing after the" in stream
        assert client.post(COMPLETIONS, json=PROMPT | {"max_tokens": 3}).status_code == 200


@pytest.mark.parametrize("kind", [Engine, drafting_engine])
def test_no_request_sees_the_mask_of_another(kind: type[Engine]) -> None:
    """Also if a step fails meanwhile."""
    bodies: list[tuple[str, dict[str, Any]]] = []
    for seed in range(4):
        bodies += [
            (CHAT, MESSAGES | formatted(KING) | {"seed": seed}),
            (COMPLETIONS, PROMPT | {"structured_outputs": {"regex": "[ab]{9}[cd]{9}"}, "seed": seed}),
            (COMPLETIONS, PROMPT | {"seed": seed, "max_tokens": 40}),
        ]
    with in_memory(app_of(lambda: make_engine(kind))) as client:
        alone = [client.post(path, json=body).json()["choices"] for path, body in bodies]
    count = 0

    def sometimes(output: object) -> bool:
        nonlocal count
        count += 1
        return count in (7, 8, 20)

    broken = app_of(lambda: failing(make_engine(kind), sometimes))
    with in_memory(broken) as client, ThreadPoolExecutor(len(bodies)) as pool:
        asked = [pool.submit(client.post, path, json=body) for path, body in bodies]
        together = [each.result(SECONDS) for each in asked]
    is_ok = [each.status_code == 200 for each in together]
    assert sum(is_ok) >= len(bodies) - 2, "a failed step ends at most the request on trial"
    for found, expected in zip(together, alone, strict=True):
        assert found.status_code == 500 or found.json()["choices"] == expected
