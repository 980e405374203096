"""Anthropic's client for Python, unmodified: against a server with the shipped model, or with a script."""

import asyncio
from typing import Any, Literal

import anthropic
import httpx2
import pydantic
import pytest

from tests.clients import SAMPLED
from tests.clients.serving import MODEL, expected
from tests.server.scripted import scripted_app
from tests.server.servers import MODEL as FAKE
from tests.server.servers import app_of, on_socket

pytestmark = SAMPLED
NAME = MODEL.name
ASKED = [{"role": "user", "content": "Who made the world?"}]
GREEDY = {"temperature": 0}  # which this client has no parameter for any more
FIELDS: dict[str, Any] = {"model": NAME, "messages": ASKED, "max_tokens": 12, "extra_body": GREEDY}
PROMPT = "<|im_start|>user\nWho made the world?<|im_end|>\n<|im_start|>assistant\n"
TOOL = {
    "name": "weather",
    "description": "How it is somewhere",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def client_of(url: str, **settings: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(**{"base_url": url, "api_key": "any", "max_retries": 0} | settings)


@pytest.fixture(scope="module")
def client(url: str) -> anthropic.Anthropic:
    return client_of(url)


def test_models(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == [NAME]


def test_messages_whole_and_streamed(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**FIELDS)
    assert message.content[0].text == expected(PROMPT, 12)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 12)
    counted = client.messages.count_tokens(model=NAME, messages=ASKED)
    read = message.usage.cache_read_input_tokens
    assert message.usage.input_tokens + read == counted.input_tokens
    with client.messages.stream(**FIELDS) as stream:
        assert "".join(stream.text_stream) == message.content[0].text
        assert stream.get_final_text() == message.content[0].text
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 12)
    kinds = [event.type for event in client.messages.create(**FIELDS, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_an_answer_that_continues_the_last_message(client: anthropic.Anthropic) -> None:
    begun = [*ASKED, {"role": "assistant", "content": "In the beginning"}]
    message = client.messages.create(**FIELDS | {"messages": begun})
    assert message.content[0].text == expected(f"{PROMPT}In the beginning", 12)


def test_system_and_stop_sequences(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**FIELDS, system=[{"type": "text", "text": "Be brief."}])
    text = whole.content[0].text
    stop = text.split()[3]
    message = client.messages.create(**FIELDS, system="Be brief.", stop_sequences=[stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == text[: text.index(stop)]


class King(pydantic.BaseModel):
    land: Literal["Judah", "Israel"]


def test_structured_output(client: anthropic.Anthropic) -> None:
    message = client.messages.parse(**FIELDS | {"max_tokens": 800}, output_format=King)
    assert isinstance(message.parsed_output, King)


def test_tools() -> None:
    """The shipped model's chat template has no tools, so a script answers."""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
    app, tokenizer = scripted_app(f"I look.\n{call}", 3)
    with on_socket(app) as url:
        client = client_of(url)
        fields = FIELDS | {"model": FAKE, "tools": [TOOL], "max_tokens": 99}
        message = client.messages.create(**fields)
        text, use = message.content
        assert (text.text, use.name, use.input) == ("I look.", "weather", {"city": "Ulm"})
        assert message.stop_reason == "tool_use"
        with client.messages.stream(**fields) as stream:
            final = stream.get_final_message()
        assert [block.type for block in final.content] == ["text", "tool_use"]
        assert (final.content[1].input, final.stop_reason) == ({"city": "Ulm"}, "tool_use")
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain"}
        answered = [
            *ASKED,
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [result]},
        ]
        assert client.messages.create(**fields | {"messages": answered}).content
        assert [each["role"] for each in tokenizer.asked["messages"]] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"model": "gpt-5"}, anthropic.NotFoundError, "gpt-5"),
        ({"extra_body": {"temperature": 5}}, anthropic.BadRequestError, "temperature"),
        ({"messages": []}, anthropic.BadRequestError, "messages"),
        ({"max_tokens": 5000}, anthropic.BadRequestError, "maximum context length"),
    ],
)
def test_errors(client: anthropic.Anthropic, fields: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        client.messages.create(**FIELDS | fields)
    with pytest.raises(error, match=words):
        client.messages.create(**FIELDS | fields, stream=True)  # before the first event


def test_the_key() -> None:
    with on_socket(app_of(api_key="k")) as url:
        fields = FIELDS | {"model": FAKE, "messages": [{"role": "user", "content": "A"}]}
        assert client_of(url, api_key="k").messages.create(**fields).content
        assert client_of(url, api_key=None, auth_token="k").messages.create(**fields).content
        with pytest.raises(anthropic.AuthenticationError):
            client_of(url, api_key="wrong").messages.create(**fields)


def test_a_stream_that_is_closed_early(url: str) -> None:
    async def run() -> int:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any") as client:
            number = 0
            async for _ in await client.messages.create(**FIELDS | {"max_tokens": 1000}, stream=True):
                number += 1
                if number == 5:
                    break
        return number

    assert asyncio.run(run()) == 5
    assert httpx2.get(f"{url}/health").status_code == 200
