"""Answers that continue the last message instead of beginning a new one."""

import asyncio
from typing import Any

import pytest

from http_server.text_codec import TextCodec
from kernel_runtime.checkpoint import load_tokenizer
from tests.clients.serving import MODEL as SHIPPED
from tests.server.scripted import scripted_app
from tests.server.servers import MODEL, app_of, in_memory
from tests.server.test_streams import endpoint_of

USER, BEGUN = {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "In the"}
CONTINUED = {"continue_final_message": True}
ASKED = "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("messages", "fields", "expected"),
    [
        ([USER], {}, ASKED),
        ([USER, BEGUN], CONTINUED, ASKED + "In the"),
        ([USER, BEGUN], CONTINUED | {"add_generation_prompt": False}, ASKED + "In the"),
        ([USER, BEGUN | {"content": "In the "}], CONTINUED, ASKED + "In the "),
        ([USER, BEGUN | {"content": "Who?"}], CONTINUED, ASKED + "Who?"),
        ([USER, BEGUN | {"content": ""}], CONTINUED, ASKED),
        ([USER, BEGUN | {"content": [{"type": "text", "text": "In"}]}], CONTINUED, ASKED + "In"),
        ([USER], CONTINUED, "<|im_start|>user\nWho?"),
        ([USER], {"add_generation_prompt": False}, "<|im_start|>user\nWho?<|im_end|>\n"),
    ],
)
def test_where_the_prompt_ends(messages: list[dict[str, Any]], fields: dict[str, Any], expected: str) -> None:
    async def prompt() -> str:
        codec = TextCodec(lambda: load_tokenizer(SHIPPED))
        (ids,) = await endpoint_of({"messages": messages, **fields}, codec).encode()
        text = await codec.decode(ids)
        codec.close()
        return text

    assert asyncio.run(prompt()) == expected


def test_the_answer_is_only_what_follows() -> None:
    app, tokenizer = scripted_app(" beginning", 3)
    with in_memory(app) as client:
        for path in ("/v1/chat/completions", "/tokenize"):
            tokenizer.asked.clear()
            body = {"model": MODEL, "messages": [USER, BEGUN], "temperature": 0, **CONTINUED}
            body = body if path != "/tokenize" else {"messages": body["messages"], **CONTINUED}
            response = client.post(path, json=body)
            assert response.status_code == 200
            options = tokenizer.asked["add_generation_prompt"], tokenizer.asked["continue_final_message"]
            assert options == (False, True)
            if path != "/tokenize":
                assert response.json()["choices"][0]["message"]["content"] == " beginning"


@pytest.mark.parametrize(
    ("messages", "fields", "param"),
    [
        ([USER, BEGUN], {"add_generation_prompt": True}, "add_generation_prompt"),
        (
            [USER, BEGUN | {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}],
            {},
            "continue_final_message",
        ),
    ],
)
def test_what_cannot_be_continued(messages: list[Any], fields: dict[str, Any], param: str) -> None:
    with in_memory(app_of()) as client:
        for path, model in (("/v1/chat/completions", {"model": MODEL}), ("/tokenize", {})):
            response = client.post(path, json={"messages": messages, **model, **CONTINUED, **fields})
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)
