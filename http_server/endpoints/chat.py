"""What is particular to /v1/chat/completions."""

from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tiny_llm.generation.structured_outputs import StructuredOutputsParams

from ..answer_format import calls_of_tools, has_grammar_of_calls, has_room_for_thoughts
from ..api_route import QUESTION, STREAMED_USAGE, ApiRoute
from ..call_formats import CallFormat, format_of
from ..completion_objects import (
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    ChatMessage,
    ChatTokenLogprob,
    Choice,
    Completion,
    Delta,
    TopLogprob,
)
from ..conversation import encode_messages, end_of_prompt, tools_of
from ..endpoint import AnswerPart, Endpoint, bytes_of_logprobs
from ..fields import ChatRequest
from ..params import chat_params, template_options
from ..pieces import AnswerParser, Call, Piece, PlainText, Text, Thought
from ..serve_completion import serve_completion
from ..server import server_of
from ..text_codec import TextCodec
from ..thoughts import ThoughtParser
from ..token_texts import readable
from ..tool_calls import CalledFunction, ToolCall


async def chat_completions(http: Request) -> Response:
    """Answer a conversation."""
    server = server_of(http)
    request = await server.body(http, ChatRequest)
    return await serve_completion(http, server.client, ChatEndpoint(request, server.codec))


class ChatEndpoint(Endpoint):
    """/v1/chat/completions

    Attributes:
        places: the field that each message comes from; by default, an entry of `messages`.
    """

    places: Items[str] | None = None

    prefix, kind, chunk_kind, prompt_field = (
        "chatcmpl",
        "chat.completion",
        "chat.completion.chunk",
        "messages",
    )

    def __init__(self, request: ChatRequest, codec: TextCodec) -> None:
        super().__init__(codec)
        self.request: ChatRequest = request
        self._tools = tools_of(request)
        self._options = self._template_options()
        self.params = chat_params(request)
        self.num_prompts = 1
        self.grammar_field = self.field_of_grammar()
        self._form: CallFormat | None = None
        self._is_in_thought = False
        self._parsers: dict[int, AnswerParser] = {}

    async def encode(self) -> list[tuple[int, ...]]:
        ids = await encode_messages(
            self.codec, self.request.messages, self._tools, self._options, self.places
        )
        if self._tools:
            self._form = format_of(await self.codec.template())
        self._is_in_thought = await self.codec.opens_thought(ids)
        self.params = replace(self.params, structured_outputs=self._grammar())
        return [ids]

    def _grammar(self) -> StructuredOutputsParams | None:
        """What the answer must look like, after its thought."""
        outputs = self.params.structured_outputs
        if self._form is not None and has_grammar_of_calls(self.request):
            outputs = calls_of_tools(self.request, self._form)
        may_think = self._options.get("enable_thinking") or self._options.get("thinking")
        if outputs is None or not (self._is_in_thought or may_think):
            return outputs
        return replace(outputs, thought="open" if self._is_in_thought else "possible")

    def _template_options(self) -> dict[str, Any]:
        """Options of the chat template. Where there is a grammar, thinking must be asked for."""
        request = self.request
        options: dict[str, Any] = {} if has_room_for_thoughts(request) else {"enable_thinking": False}
        effort = request.reasoning_effort
        if effort is None and request.reasoning is not None:
            effort = request.reasoning.effort
        if effort is not None:
            options |= {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        return options | template_options(request.chat_template_kwargs) | end_of_prompt(request)

    def field_of_grammar(self) -> str:
        """The field that a grammar comes from, if there is one."""
        if self.request.structured_outputs is not None:
            return "structured_outputs"
        return "response_format" if self.request.response_format is not None else "tools"

    async def choice(self, index: int, part: AnswerPart) -> Choice:
        calls: list[ToolCall] = []
        thought = text = ""
        pieces, reason = self.pieces(index, part)
        for piece in pieces:
            if isinstance(piece, Thought):
                thought += piece.text
            elif isinstance(piece, Text):
                text += piece.text
            elif isinstance(piece, Call):
                calls.append(ToolCall(piece.id, CalledFunction(piece.name, "")))
            else:
                calls[-1].function.arguments += piece.text
        message = ChatMessage(text or (None if thought or calls else ""))
        if thought:
            message.reasoning_content = message.reasoning = thought
        if calls:
            message.tool_calls = calls
        return ChatChoice(index, message, await self._logprobs(index, part), reason)

    async def chunks(self, index: int, part: AnswerPart, is_first: bool) -> list[Choice]:
        number = self._parsers[index].num_calls if index in self._parsers else 0
        pieces, reason = self.pieces(index, part)
        deltas = []
        for piece in pieces:
            number += isinstance(piece, Call)
            deltas.append(delta_of(piece, number - 1))
        logprobs = await self._logprobs(index, part)
        chunks: list[Choice] = [ChatChunkChoice(index, Delta("assistant", ""))] if is_first else []
        if logprobs and not deltas:
            deltas.append(Delta(content=""))
        for delta in deltas:
            chunks.append(ChatChunkChoice(index, delta, logprobs))
            logprobs = None
        if reason is not None:
            chunks.append(ChatChunkChoice(index, Delta(), None, reason))
        return chunks

    @property
    def num_thought_tokens(self) -> int:
        """Number of tokens that were thoughts, of all answers."""
        return sum(parser.num_thought_tokens for parser in self._parsers.values())

    def pieces(self, index: int, part: AnswerPart) -> tuple[list[Piece], str | None]:
        """What a part of an answer consists of, and why the answer ends if it does."""
        parser = self._parsers.get(index)
        if parser is None:
            calls = self._form.parser(self._tools) if self._form is not None else PlainText()
            parser = self._parsers[index] = AnswerParser(ThoughtParser(self._is_in_thought), calls)
        reason, num_before = part.finish_reason, parser.num_calls
        found = parser.add(part.text, len(part.token_ids), reason is not None)
        if self.request.parallel_tool_calls is False:
            found = without_later_calls(found, num_before)
        if self.request.include_reasoning is False:
            found = [piece for piece in found if not isinstance(piece, Thought)]
        return found, "tool_calls" if reason == "stop" and parser.num_calls else reason

    async def _logprobs(self, index: int, part: AnswerPart) -> ChatLogprobs | None:
        if not self.request.logprobs:
            return None
        bytes_of = await bytes_of_logprobs(self.codec, part)
        found, text = ChatLogprobs([]), self.growing[index]
        for token, each in zip(part.token_ids, part.logprobs, strict=True):
            likely = [(text.choose(bytes_of[id]), logprob) for id, logprob in each.top]
            top = [TopLogprob(readable(content), logprob, list(content)) for content, logprob in likely]
            content = text.add(bytes_of[token])
            found.content.append(ChatTokenLogprob(readable(content), each.logprob, list(content), top))
        return found


def delta_of(piece: Piece, number: int) -> Delta:
    """A piece as a part of a streamed message; the number is that of the current call."""
    if isinstance(piece, Thought):
        return Delta(reasoning_content=piece.text, reasoning=piece.text)
    if isinstance(piece, Text):
        return Delta(content=piece.text)
    if isinstance(piece, Call):
        return Delta(tool_calls=[ToolCall(piece.id, CalledFunction(piece.name, ""), index=number)])
    return Delta(tool_calls=[ToolCall(UNSET, CalledFunction(UNSET, piece.text), UNSET, number)])


def without_later_calls(pieces: Items[Piece], num_before: int) -> list[Piece]:
    """Leave out all calls but the first of an answer, which may have had some before."""
    kept, number = [], num_before
    for piece in pieces:
        number += isinstance(piece, Call)
        if number <= 1 or isinstance(piece, Thought | Text):
            kept.append(piece)
    return kept


SCHEMA = {"name": "maker", "schema": {"type": "object", "properties": {"name": {"type": "string"}}}}
ROUTE = ApiRoute(
    "/v1/chat/completions",
    chat_completions,
    Completion[ChatChoice],
    ChatRequest,
    event=Completion[ChatChunkChoice],
    examples={
        "whole": {"messages": QUESTION, "max_completion_tokens": 8, "n": 2},
        "streamed": {"messages": QUESTION, "logprobs": True, "top_logprobs": 2, **STREAMED_USAGE},
        "structured": {
            "messages": QUESTION,
            "response_format": {"type": "json_schema", "json_schema": SCHEMA},
        },
    },
)
