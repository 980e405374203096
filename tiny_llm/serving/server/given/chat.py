"""What is particular to /v1/chat/completions."""

from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replace_fields

from .completions import Endpoint, Part, bytes_of_logprobs
from .conversation import encode_messages, end_of_prompt, tools_of
from .fields import ChatRequest
from .params import chat_params, template_options
from .responses import (
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    ChatMessage,
    ChatTokenLogprob,
    Choice,
    Delta,
    TopLogprob,
)
from .structured_outputs import has_room_for_thoughts
from .text_codec import TextCodec
from .token_texts import readable
from .tool_calls import ToolCall, ToolCallParser


class ChatEndpoint(Endpoint):
    """/v1/chat/completions"""

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
        self.params = chat_params(request)
        self.num_prompts = 1
        self.grammar_field = self.field_of_grammar()
        self._end_of_prompt = end_of_prompt(request)
        self._parsers: dict[int, ToolCallParser] = {}

    async def encode(self) -> list[tuple[int, ...]]:
        return [await encode_messages(self.codec, self.request.messages, self._tools, self.template_options)]

    @property
    def template_options(self) -> dict[str, Any]:
        """Options of the chat template. An answer with a grammar has no room for thoughts."""
        options = {} if has_room_for_thoughts(self.request) else {"enable_thinking": False}
        return options | template_options(self.request.chat_template_kwargs) | self._end_of_prompt

    def field_of_grammar(self) -> str:
        """The field that a grammar comes from, if there is one."""
        if self.request.structured_outputs is not None:
            return "structured_outputs"
        return "response_format" if self.request.response_format is not None else "tools"

    async def choice(self, index: int, part: Part) -> Choice:
        part, calls = self.parsed(index, part)
        message = ChatMessage(part.text or None, tool_calls=calls) if calls else ChatMessage(part.text)
        return ChatChoice(index, message, await self._logprobs(index, part), part.finish_reason)

    async def chunks(self, index: int, part: Part, is_first: bool) -> list[Choice]:
        num_before = len(self._parsers[index].calls) if index in self._parsers else 0
        part, calls = self.parsed(index, part)
        chunks: list[Choice] = [ChatChunkChoice(index, Delta("assistant", ""))] if is_first else []
        if part.text or part.logprobs:
            chunks.append(ChatChunkChoice(index, Delta(content=part.text), await self._logprobs(index, part)))
        for number, call in enumerate(calls[num_before:], num_before):
            chunks.append(ChatChunkChoice(index, Delta(tool_calls=[replace_fields(call, index=number)])))
        if part.finish_reason is not None:
            chunks.append(ChatChunkChoice(index, Delta(), None, part.finish_reason))
        return chunks

    def parsed(self, index: int, part: Part) -> tuple[Part, list[ToolCall]]:
        """The part with only the text that belongs to no call, and all calls of the answer so far."""
        if not self._tools:
            return part, []
        parser = self._parsers.setdefault(index, ToolCallParser())
        text = parser.add(part.text)
        reason = part.finish_reason
        if reason is not None:
            text += parser.finish()
        calls = parser.calls[:1] if self.request.parallel_tool_calls is False else parser.calls
        reason = "tool_calls" if reason == "stop" and calls else reason
        return replace(part, text=text, finish_reason=reason), calls

    async def _logprobs(self, index: int, part: Part) -> ChatLogprobs | None:
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
