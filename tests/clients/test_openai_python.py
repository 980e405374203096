"""OpenAI's client for Python, unmodified, against a server with the shipped model."""

import asyncio
from typing import Annotated, Literal

import openai
import pydantic
import pytest

from tests.clients.serving import MODEL, expected
from tests.server.scripted import scripted_app
from tests.server.servers import MODEL as FAKE
from tests.server.servers import on_socket

NAME = MODEL.name


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "tiny-llm"


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt="In the beginning", max_tokens=24, temperature=0)
    assert answer.choices[0].text == expected("In the beginning", 24)
    assert answer.usage.completion_tokens == 24
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_streamed_completion(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model=NAME, prompt="In the beginning", max_tokens=24, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == expected("In the beginning", 24)


def test_chat(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Who made the world?"}]
    fields = {"model": NAME, "messages": messages, "max_completion_tokens": 12, "temperature": 0}
    answer = client.chat.completions.create(**fields, logprobs=True, top_logprobs=3)
    assert answer.choices[0].message.role == "assistant"
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
    with client.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
        events = list(stream)
    text = "".join(event.delta for event in events if event.type == "content.delta")
    assert text == answer.choices[0].message.content
    usage = [event.chunk.usage for event in events if event.type == "chunk"]
    assert set(usage[:-1]) == {None}
    assert usage[-1].total_tokens == answer.usage.total_tokens


def test_log_probabilities_of_parts_of_a_character(client: openai.OpenAI) -> None:
    regex = {"structured_outputs": {"regex": "a😀!"}}
    messages = [{"role": "user", "content": "a"}]
    fields = {"model": NAME, "messages": messages, "logprobs": True, "top_logprobs": 2, "extra_body": regex}
    content = client.chat.completions.create(**fields).choices[0].logprobs.content
    assert bytes(byte for token in content for byte in token.bytes).decode() == "a😀!"
    fields = {"model": NAME, "prompt": "a", "logprobs": 2, "extra_body": regex}
    logprobs = client.completions.create(**fields).choices[0].logprobs
    assert logprobs.text_offset == [0, 1, 1, 1, 1, 2]


def test_an_answer_that_continues_the_last_message(client: openai.OpenAI) -> None:
    messages = [
        {"role": "user", "content": "Who made the world?"},
        {"role": "assistant", "content": "In the beginning"},
    ]
    prefill = {"add_generation_prompt": False, "continue_final_message": True}
    fields = {"model": NAME, "messages": messages, "temperature": 0, "max_tokens": 8, "extra_body": prefill}
    prompt = "<|im_start|>user\nWho made the world?<|im_end|>\n<|im_start|>assistant\nIn the beginning"
    assert client.chat.completions.create(**fields).choices[0].message.content == expected(prompt, 8)


def test_responses(client: openai.OpenAI) -> None:
    fields = {"model": NAME, "input": "Who made the world?", "max_output_tokens": 12, "temperature": 0}
    answer = client.responses.create(**fields)
    assert answer.output_text
    assert answer.status in ("completed", "incomplete")
    assert answer.usage.output_tokens <= 12
    events = list(client.responses.create(**fields, stream=True))
    assert (
        "".join(each.delta for each in events if each.type == "response.output_text.delta")
        == answer.output_text
    )
    assert events[-1].response.output_text == answer.output_text
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(**fields, previous_response_id=answer.id)
    assert raised.value.param == "previous_response_id"


def test_tools() -> None:
    """The shipped model's chat template has no tools, so a script answers."""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    app, _ = scripted_app(f"I look.\n{call}", 3)
    with on_socket(app) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        fields = {
            "model": FAKE,
            "messages": [{"role": "user", "content": "How is it in Ulm?"}],
            "tools": [{"type": "function", "function": {"name": "weather", "parameters": parameters}}],
            "temperature": 0,
        }
        (choice,) = client.chat.completions.create(**fields).choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look."
        assert choice.message.tool_calls[0].function.name == "weather"
        with client.chat.completions.stream(**fields) as stream:
            final = stream.get_final_completion().choices[0]
        assert (
            final.message.tool_calls[0].function.arguments == choice.message.tool_calls[0].function.arguments
        )
        assert final.finish_reason == "tool_calls"
        answered = [
            *fields["messages"],
            choice.message,
            {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "rain"},
        ]
        assert client.chat.completions.create(**fields | {"messages": answered}).choices

        tool = {"type": "function", "name": "weather", "parameters": parameters, "strict": False}
        asked = {"model": FAKE, "input": "How is it?", "tools": [tool], "temperature": 0}
        message, called = client.responses.create(**asked).output
        assert (message.type, called.type, called.name) == ("message", "function_call", "weather")
        with client.responses.stream(**asked) as stream:
            message, called = stream.get_final_response().output
        assert message.content[0].text == "I look."
        assert called.arguments == choice.message.tool_calls[0].function.arguments


def test_thoughts_go_both_ways() -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
    app, tokenizer = scripted_app(f"<think>\nHm.\n</think>\n\n{call}", 3)
    with on_socket(app) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        question = {"role": "user", "content": "How is it in Ulm?"}
        tool = {"type": "function", "function": {"name": "weather"}}
        fields = {"model": FAKE, "messages": [question], "tools": [tool], "temperature": 0}
        with client.chat.completions.stream(**fields) as stream:
            message = stream.get_final_completion().choices[0].message
        assert (message.reasoning, message.content) == ("Hm.", "")
        again = [
            question,
            message,
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"},
        ]
        assert client.chat.completions.create(**fields | {"messages": again}).choices
        assert tokenizer.asked["messages"][1]["reasoning_content"] == "Hm."

        tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
        asked = {"model": FAKE, "input": [question], "tools": [tool], "temperature": 0}
        with client.responses.stream(**asked) as stream:
            thought, called = stream.get_final_response().output
        assert (thought.type, thought.content[0].text) == ("reasoning", "Hm.")
        result = {"type": "function_call_output", "call_id": called.call_id, "output": "rain"}
        client.responses.create(**asked | {"input": [question, thought, called, result]})
        assert tokenizer.asked["messages"][1]["reasoning_content"] == "Hm."
        assert tokenizer.asked["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"city": "Ulm"}


class Land(pydantic.BaseModel):
    name: Literal["Judah", "Israel"]


MAX_TOKENS = 1200
"""Of an object: a model may write 64 spaces between any two of its parts, and the one that ships does."""


class King(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(min_length=1, max_length=12)]
    years: Annotated[int, pydantic.Field(ge=1, le=70)]
    land: Land


class Number(pydantic.BaseModel):
    b: int


def test_strict_tools() -> None:
    """What the client makes of a type is strict."""
    app, _ = scripted_app('<tool_call>\n{"name": "a", "arguments": {"b":1}}\n</tool_call>', 1)
    with on_socket(app) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        tool = openai.pydantic_function_tool(Number, name="a")
        assert tool["function"]["strict"] is True
        fields = {
            "model": FAKE,
            "messages": [{"role": "user", "content": "?"}],
            "tools": [tool],
            "temperature": 0,
        }
        (choice,) = client.chat.completions.parse(**fields).choices
        assert choice.message.tool_calls[0].function.parsed_arguments == Number(b=1)
        with client.chat.completions.stream(**fields) as stream:
            (choice,) = stream.get_final_completion().choices
        assert choice.message.tool_calls[0].function.parsed_arguments == Number(b=1)


def test_parse(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Who was king?"}]
    fields = {"model": NAME, "messages": messages, "temperature": 0, "max_completion_tokens": MAX_TOKENS}
    king = client.chat.completions.parse(**fields, response_format=King).choices[0].message.parsed
    assert isinstance(king, King)
    with client.chat.completions.stream(**fields, response_format=King) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == king
    answer = client.responses.parse(
        model=NAME, input="Who was king?", temperature=0, max_output_tokens=MAX_TOKENS, text_format=King
    )
    assert answer.output_parsed == king
    regex = {"structured_outputs": {"regex": "(yes|no), (Lord|Moses)"}}
    asked = client.completions.create(model=NAME, prompt="Is it so?", extra_body=regex, max_tokens=30)
    assert asked.choices[0].text.split(", ")[1] in ("Lord", "Moses")
    schema = {"name": "a", "schema": {"type": "array", "uniqueItems": True}}
    with pytest.raises(openai.BadRequestError, match="uniqueItems") as raised:
        client.chat.completions.create(
            **fields, response_format={"type": "json_schema", "json_schema": schema}
        )
    assert raised.value.param == "response_format"


def test_extras(client: openai.OpenAI) -> None:
    fields = {"model": NAME, "prompt": "And", "max_tokens": 9, "seed": 3, "n": 3}
    answers = [
        client.completions.create(**fields, extra_body={"top_k": 5, "ignore_eos": True}) for _ in range(2)
    ]
    texts = [[choice.text for choice in answer.choices] for answer in answers]
    assert texts[0] == texts[1]
    assert answers[0].usage.completion_tokens == 27


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": "gpt-5"}, "NotFoundError", "model"),
        ({"temperature": 5}, "BadRequestError", "temperature"),
        ({"max_tokens": 10**6}, "BadRequestError", "prompt"),
    ],
)
def test_errors(client: openai.OpenAI, fields: dict[str, object], error: str, param: str) -> None:
    with pytest.raises(getattr(openai, error)) as raised:
        client.completions.create(**{"model": NAME, "prompt": "A"} | fields)
    assert raised.value.param == param


def test_async_client_in_parallel(url: str) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
            answers = await asyncio.gather(
                *(
                    client.completions.create(model=NAME, prompt=prompt, max_tokens=16, temperature=0)
                    for prompt in prompts
                )
            )
        return [answer.choices[0].text for answer in answers]

    prompts = [f"Psalm {number}" for number in range(12)]
    assert asyncio.run(run()) == [expected(prompt, 16) for prompt in prompts]
