"""/v1/messages: a chat completion in Anthropic's protocol. Nothing is stored."""

from collections.abc import AsyncIterator

import msgspec
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from ..anthropic_chat import chat_of
from ..anthropic_events import AnthropicEvent, AnthropicMessage, AnthropicUsage, GrowingMessage, InputTokens
from ..anthropic_fields import CUSTOM, CountTokensRequest, MessagesRequest
from ..api_route import QUESTION, ApiRoute
from ..endpoint import AnswerPart
from ..errors import AnthropicError, ApiError
from ..ignored_fields import IGNORED
from ..job import Job
from ..serve_completion import Reply, serve_completion
from ..server import as_json, server_of
from ..text_codec import TextCodec
from .chat import ChatEndpoint
from .responses import event
from .tokenize import MAX_BODY_BYTES, in_turn


async def messages(http: Request) -> Response:
    """Answer a conversation, in Anthropic's protocol."""
    server = server_of(http)
    request = await server.body(http, MessagesRequest)
    http.scope[IGNORED] += [
        f"tools[].type={tool.type}" for tool in request.tools or () if tool.type not in CUSTOM
    ]
    endpoint = AnthropicEndpoint(request, server.codec)
    return await serve_completion(http, server.client, endpoint, endpoint.answer)


async def count_tokens(http: Request) -> Response:
    """Count the tokens of a prompt, in Anthropic's protocol."""
    server = server_of(http)
    request = await server.body(http, CountTokensRequest, MAX_BODY_BYTES)
    server.client.check_ready()
    whole = MessagesRequest(max_tokens=1, **msgspec.structs.asdict(request))
    endpoint = AnthropicEndpoint(whole, server.codec)
    try:
        (ids,) = await in_turn(http, server, endpoint.encode)
    except ValueError as error:
        raise ApiError(400, str(error), "messages", "invalid_value") from None
    return as_json(InputTokens(len(ids)))


class AnthropicEndpoint(ChatEndpoint):
    """/v1/messages"""

    prefix, kind, prompt_field = "msg", "message", "messages"

    def __init__(self, request: MessagesRequest, codec: TextCodec) -> None:
        chat, self.places = chat_of(request)
        super().__init__(chat, codec)

    def field_of_grammar(self) -> str:
        return super().field_of_grammar().replace("response_format", "output_config.format")

    def answer(self, job: Job) -> Reply:
        return MessageReply(job, self)

    async def stop_string_in(self, token_ids: list[int]) -> str | None:
        """The stop string that an answer has, the first one if there are several."""
        text = await self.codec.decode(token_ids) if self.params.stop else ""
        found = [string for string in self.params.stop if string in text]
        return min(found, key=text.index, default=None)


class MessageReply(Reply):
    """Turn the increments of a job into a message, or into its events.

    Args:
        job: yields the increments, of one answer.
        endpoint: knows the request, and separates calls from text.
    """

    ping = event("ping", AnthropicEvent("ping"))

    def __init__(self, job: Job, endpoint: AnthropicEndpoint) -> None:
        super().__init__(job)
        self._endpoint = endpoint
        message = AnthropicMessage(job.name, endpoint.request.model, [], AnthropicUsage(0, 0, 0))
        self._growing = GrowingMessage(message)

    async def completion(self) -> AnthropicMessage:
        """Wait for the answer."""
        async for _ in self._events():
            pass
        return self._growing.message

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """Yield the events as they come. An error is the last one."""
        try:
            async for each in self._events():
                yield event(each.type, each)
        except ApiError as error:
            yield event("error", AnthropicEvent("error", error=AnthropicError.of(error)))

    async def _events(self) -> AsyncIterator[AnthropicEvent]:
        token_ids: list[int] = []
        is_first = True
        async for _, increment in self.job.increments():
            if is_first:  # only now it is known how much of the prompt was found in the cache
                for each in self._growing.begin(self.usage):
                    yield each
            token_ids, is_first = [*token_ids, *increment.token_ids], False
            part = AnswerPart()
            part.add(increment)
            pieces, reason = self._endpoint.pieces(0, part)
            for piece in pieces:
                for each in self._growing.add(piece):
                    yield each
            if reason is not None:
                stop_string = await self._endpoint.stop_string_in(token_ids) if reason == "stop" else None
                for each in self._growing.end(reason, stop_string, self.usage):
                    yield each


ROUTES = (
    ApiRoute(
        "/v1/messages",
        messages,
        AnthropicMessage,
        MessagesRequest,
        event=AnthropicEvent,
        examples={
            "whole": {"messages": QUESTION, "max_tokens": 8, "stop_sequences": ["God"]},
            "streamed": {"messages": QUESTION, "max_tokens": 8, "system": "Be brief.", "stream": True},
        },
    ),
    ApiRoute(
        "/v1/messages/count_tokens",
        count_tokens,
        InputTokens,
        CountTokensRequest,
        examples={"messages": {"messages": QUESTION}},
    ),
)
