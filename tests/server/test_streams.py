"""What a stream sends, and after which increments of its answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from http_server import serve_completion
from http_server.completion_objects import Choice
from http_server.endpoint import AnswerPart, Endpoint
from http_server.endpoints.chat import ChatEndpoint
from http_server.endpoints.completions import CompletionEndpoint
from http_server.fields import ChatRequest, CompletionRequest
from http_server.serve_completion import CompletionReply
from http_server.text_codec import TextCodec
from tests.server.servers import MODEL
from tests.support.server_engines import ChatFake
from tiny_llm.batching.answer import TokenLogprobs
from tiny_llm.server.mailbox import Increment

CHAT = {"messages": [{"role": "user", "content": "HI"}]}
PROMPT = {"prompt": "HI"}


class ScriptedJob:
    """A job of one answer, whose text is held back for a while, as it is before a stop string or a call."""

    name = "r"

    def __init__(self, has_logprobs: bool) -> None:
        self.logprobs = (TokenLogprobs(-1.0, ()),) * has_logprobs
        self.num_taken = 0

    async def increments(self) -> AsyncIterator[tuple[int, Increment]]:
        for token, text in enumerate(["", "", "ABC", "", ""], 1):
            self.num_taken += 1
            yield 0, Increment(0, (token,), text, self.logprobs, "stop" if token == 5 else None)


def endpoint_of(fields: dict[str, Any], codec: TextCodec) -> Endpoint:
    body = {"model": MODEL, "stream": True, **fields}
    if "messages" in fields:
        return ChatEndpoint(msgspec.convert(body, ChatRequest), codec)
    return CompletionEndpoint(msgspec.convert(body, CompletionRequest), codec)


def chunks_of(fields: dict[str, Any]) -> list[tuple[int, Any]]:
    """The chunks of a stream, each with the number of increments that it came after."""

    async def run() -> list[tuple[int, Any]]:
        codec = TextCodec(ChatFake)
        job: Any = ScriptedJob("logprobs" in fields)
        events = CompletionReply(job, endpoint_of(fields, codec)).events()
        found = [(job.num_taken, event.data) async for event in events]
        codec.close()
        assert found.pop() == (5, "[DONE]")
        return [(number, json.loads(str(data))) for number, data in found]

    return asyncio.run(run())


def described(choice: dict[str, Any]) -> tuple[str, list[str] | None]:
    """The text of a chunk, and the tokens that it has log-probabilities of."""
    logprobs = choice["logprobs"]
    if "text" in choice:
        return choice["text"], None if logprobs is None else logprobs["tokens"]
    tokens = None if logprobs is None else [each["token"] for each in logprobs["content"]]
    return choice["delta"].get("content", ""), tokens


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (PROMPT, [(3, "ABC", None), (5, "", None)]),
        (PROMPT | {"echo": True}, [(1, "HI", None), (3, "ABC", None), (5, "", None)]),
        (PROMPT | {"logprobs": 0}, [(1, "", ["A"]), (3, "ABC", ["B", "C"]), (5, "", ["D", "E"])]),
        (CHAT, [(1, "", None), (3, "ABC", None), (5, "", None)]),
        (
            CHAT | {"logprobs": True},
            [(1, "", None), (1, "", ["A"]), (3, "ABC", ["B", "C"]), (5, "", ["D", "E"]), (5, "", None)],
        ),
    ],
    ids=["completion", "echo", "logprobs", "chat", "chat-logprobs"],
)
def test_a_chunk_is_sent_when_it_has_something_to_show(
    fields: dict[str, Any], expected: list[tuple[int, str, list[str] | None]]
) -> None:
    """Log-probabilities of text that is held back come with the text; but nothing delays the beginning."""
    chunks = chunks_of(fields)
    assert [(number, *described(chunk["choices"][0])) for number, chunk in chunks] == expected
    ends = [chunk["choices"][0]["finish_reason"] for _, chunk in chunks]
    assert ends == [None] * (len(chunks) - 1) + ["stop"]


def test_all_chunks_were_created_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(100)
    monkeypatch.setattr(serve_completion, "time", SimpleNamespace(time=lambda: next(clock)))
    assert {chunk["created"] for _, chunk in chunks_of(CHAT)} == {100}


def test_offsets_go_on_from_chunk_to_chunk() -> None:
    chunks = chunks_of(PROMPT | {"logprobs": 0})
    offsets = [chunk["choices"][0]["logprobs"]["text_offset"] for _, chunk in chunks]
    assert offsets == [[0], [1, 2], [3, 4]]


def test_of_two_tokens_with_the_same_text_the_likelier_one_is_shown() -> None:
    async def run() -> list[Choice]:
        codec = TextCodec(lambda: ChatFake(["", "A", "A"]))
        part = AnswerPart([1], "A", [TokenLogprobs(-1.0, ((1, -1.0), (2, -3.0)))])
        chunks = await endpoint_of(PROMPT | {"logprobs": 2}, codec).chunks(0, part, False)
        codec.close()
        return chunks

    (chunk,) = msgspec.to_builtins(asyncio.run(run()))
    assert chunk["logprobs"]["top_logprobs"] == [{"A": -1.0}]
