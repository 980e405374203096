"""/v1/responses: a chat completion under other names. Nothing is stored, so no response continues another."""

from collections.abc import AsyncIterator

import msgspec
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from ..api_route import QUESTION, ApiRoute
from ..endpoint import AnswerPart
from ..errors import ApiError
from ..ignored_fields import IGNORED
from ..job import Job
from ..response_events import GrowingResponse, ResponseEvent, ResponseObject
from ..response_fields import ResponsesRequest, chat_request, echoed
from ..serve_completion import Reply, serve_completion
from ..server import server_of
from ..text_codec import TextCodec
from .chat import ChatEndpoint


async def responses(http: Request) -> Response:
    """Answer a conversation, in the newer protocol."""
    server = server_of(http)
    request = await server.body(http, ResponsesRequest)
    http.scope[IGNORED] += [
        f"tools[].type={tool.type}" for tool in request.tools or () if tool.type != "function"
    ]
    endpoint = ResponseEndpoint(request, server.codec)
    return await serve_completion(http, server.client, endpoint, endpoint.answer)


class ResponseEndpoint(ChatEndpoint):
    """/v1/responses"""

    prefix, kind, prompt_field = "resp", "response", "input"

    def __init__(self, request: ResponsesRequest, codec: TextCodec) -> None:
        chat, self.places = chat_request(request)
        super().__init__(chat, codec)
        self.echoed = echoed(request)

    def field_of_grammar(self) -> str:
        return super().field_of_grammar().replace("response_format", "text.format")

    def answer(self, job: Job) -> Reply:
        return ResponseReply(job, self)


class ResponseReply(Reply):
    """Turn the increments of a job into a response, or into its events.

    Args:
        job: yields the increments, of one answer.
        endpoint: knows the request, and separates calls from text.
    """

    def __init__(self, job: Job, endpoint: ResponseEndpoint) -> None:
        super().__init__(job)
        self._endpoint = endpoint
        model = endpoint.request.model
        response = ResponseObject(job.name, self.created, model, "in_progress", output=[], **endpoint.echoed)
        self._growing = GrowingResponse(response)

    async def completion(self) -> ResponseObject:
        """Wait for the answer."""
        async for _ in self._events():
            pass
        return self._growing.response

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """Yield the events as they come. An error is the last one."""
        number = 0
        try:
            async for each in self._events():
                number = each.sequence_number + 1
                yield event(each.type, each)
        except ApiError as error:
            body = msgspec.structs.asdict(error.body)
            yield event("error", {**body, "type": "error", "sequence_number": number})

    async def _events(self) -> AsyncIterator[ResponseEvent]:
        for each in self._growing.begin():
            yield each
        async for _, increment in self.job.increments():
            part = AnswerPart()
            part.add(increment)
            pieces, reason = self._endpoint.pieces(0, part)
            for piece in pieces:
                for each in self._growing.add(piece):
                    yield each
            if reason is not None:
                for each in self._growing.end(reason, self.usage, self._endpoint.num_thought_tokens):
                    yield each


def event(name: str, content: object) -> ServerSentEvent:
    """A named event whose data is JSON."""
    return ServerSentEvent(msgspec.json.encode(content).decode(), event=name, sep="\n")


ROUTE = ApiRoute(
    "/v1/responses",
    responses,
    ResponseObject,
    ResponsesRequest,
    event=ResponseEvent,
    examples={
        "whole": {"input": "Who made the world?", "max_output_tokens": 8},
        "streamed": {"input": QUESTION, "instructions": "Be brief.", "stream": True},
    },
)
