"""/v1/messages: a chat completion in Anthropic's protocol. Nothing is stored."""

from collections.abc import AsyncIterator

from sse_starlette import ServerSentEvent

from .anthropic_chat import chat_of
from .anthropic_events import AnthropicEvent, AnthropicMessage, AnthropicUsage, GrowingMessage
from .anthropic_fields import MessagesRequest
from .chat import ChatEndpoint
from .completions import AnswerPart
from .errors import AnthropicError, ApiError
from .job import Job
from .response_endpoint import event
from .serve_completion import Reply
from .text_codec import TextCodec


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
