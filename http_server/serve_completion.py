"""Handle one completion: admit, encode, submit, answer at once or in a stream, and clean up."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from tiny_llm.generation.sampler import SamplingParams
from tiny_llm.generation.structured_outputs import StructuredOutputsParams
from tiny_llm.server.admission import QueueFullError, Reservation
from tiny_llm.server.disconnects import unless_disconnected

from .completion_objects import Choice, Completion, PromptTokensDetails, RequestMetrics, Usage
from .endpoint import AnswerPart, Endpoint
from .engine_client import EngineClient
from .errors import JSON, ApiError, of_queue
from .event_stream import KEEPALIVE, EventStream
from .job import Job
from .params import check_fits, check_shared
from .speculation import SpeculativeDecoding
from .text_codec import PromptTooLongError

DONE = ServerSentEvent("[DONE]", sep="\n")


async def serve_completion(
    http: Request,
    client: EngineClient,
    endpoint: Endpoint,
    make_answer: Callable[[Job], "Reply"] | None = None,
) -> Response:
    """Answer a completion request whose body has been checked.

    Args:
        http: the request.
        client: runs the answers.
        endpoint: the kind of completion.
        make_answer: what to make of its increments; a completion by default.

    Raises:
        ApiError: the request is refused, or its step failed.
        ClientGoneError: the client did not wait for the answer.
    """
    arrival = time.perf_counter()
    request = endpoint.request
    check_shared(request, client.config)
    client.check_ready()
    n = request.n or 1
    client.metrics.params_n.observe(n)
    if endpoint.params.max_tokens is not None:
        client.metrics.params_max.observe(endpoint.params.max_tokens)
    reservation = reserve(client, n * endpoint.num_prompts + endpoint.num_scored)
    try:
        job = await make_job(http, client, endpoint, n, reservation, arrival)
    except BaseException:
        reservation.__exit__(None, None, None)
        raise
    answer = make_answer(job) if make_answer else CompletionReply(job, endpoint)
    if request.stream:
        return EventStream(answer.events(), job.close, client.config, answer.ping)
    try:
        completion = await unless_disconnected(http.receive, answer.completion())
    finally:
        job.close()
    return Response(msgspec.json.encode(completion), media_type=JSON)


def reserve(client: EngineClient, num_answers: int) -> Reservation:
    """Reserve a slot per answer.

    Raises:
        ApiError: the server is full, or could never take so many at once.
    """
    most = client.admission.max_num_reqs
    if num_answers > most:
        raise ApiError(400, f"this request has {num_answers} answers, but at most {most} fit here", "n")
    try:
        return client.admission.reserve(num_answers)
    except QueueFullError as error:
        client.metrics.rejected(error.reason)
        raise of_queue(error) from None


async def make_job(
    http: Request, client: EngineClient, endpoint: Endpoint, n: int, reservation: Reservation, arrival: float
) -> Job:
    """Encode the prompts and check that they can run."""
    endpoint.codec = endpoint.codec.limited(client.max_model_len)
    try:
        prompts = await unless_disconnected(http.receive, endpoint.encode())
    except PromptTooLongError as error:
        raise ApiError(400, str(error), endpoint.prompt_field, "context_length_exceeded") from None
    except ValueError as error:
        raise ApiError(400, str(error), endpoint.prompt_field, "invalid_value") from None
    priority = endpoint.request.priority or 0
    check_fits(client, prompts, endpoint.params, priority, endpoint.prompt_field)
    try:
        reservation.count_tokens(n * sum(map(len, prompts)) + endpoint.num_scored)
    except QueueFullError as error:
        client.metrics.rejected(error.reason)
        raise of_queue(error) from None
    params = endpoint.params
    if params.structured_outputs is not None:
        params = await unless_disconnected(http.receive, compiled_params(endpoint, params.structured_outputs))
    name = f"{endpoint.prefix}-{uuid4().hex}"
    return Job(client, name, prompts, n, params, priority, reservation, arrival)


async def compiled_params(endpoint: Endpoint, outputs: StructuredOutputsParams) -> SamplingParams:
    """The parameters of a request, with its grammar compiled.

    Raises:
        ApiError: the grammar is refused.
    """
    try:
        return replace(endpoint.params, structured_outputs=await endpoint.codec.compile(outputs))
    except ValueError as error:
        message = str(error).replace("structured_outputs", endpoint.grammar_field, 1)
        raise ApiError(400, message, endpoint.grammar_field, "invalid_value") from None


class Reply(ABC):
    """What the increments of a job become.

    Args:
        job: yields the increments.

    Attributes:
        ping: what keeps a stream open while there is nothing to send.
    """

    ping = KEEPALIVE

    def __init__(self, job: Job) -> None:
        self.job = job
        self.created = int(time.time())

    @abstractmethod
    async def completion(self) -> msgspec.Struct:
        """Wait for all answers, and return the response."""

    @abstractmethod
    def events(self) -> AsyncIterator[ServerSentEvent]:
        """Yield what is known of the answers as they come. An error is the last event."""

    @property
    def usage(self) -> Usage:
        """Tokens of all answers so far."""
        records = self.job.records.values()
        num_prompt_tokens = sum(map(len, self.job.prompts))
        num_tokens = sum(record.num_tokens for record in records)
        first = [self.job.records[index] for index in range(0, self.job.num_answers, self.job.n)]
        cached = PromptTokensDetails(sum(record.num_cached_tokens for record in first))
        return Usage(num_prompt_tokens, num_tokens, num_prompt_tokens + num_tokens, cached)


class CompletionReply(Reply):
    """Turn the increments of a job into a completion, or into the chunks of a stream.

    Args:
        job: yields the increments.
        endpoint: the kind of completion.
    """

    def __init__(self, job: Job, endpoint: Endpoint) -> None:
        super().__init__(job)
        self._endpoint = endpoint

    @property
    def usage(self) -> Usage:
        """Tokens of all answers so far, as far as they are shown."""
        usage = super().usage
        if self._endpoint.is_silent:
            usage.completion_tokens, usage.total_tokens = 0, usage.prompt_tokens
        return usage

    async def completion(self) -> Completion[Choice]:
        """Wait for all answers."""
        await self._endpoint.prepare(self.job)
        parts = [AnswerPart() for _ in range(self.job.num_answers)]
        async for index, increment in self.job.increments():
            parts[index].add(increment)
        choices = [await self._endpoint.choice(index, part) for index, part in enumerate(parts)]
        completion = self._response(self._endpoint.kind, choices)
        completion.usage, completion.metrics = self.usage, self._metrics()
        return completion

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """Yield the chunks of all answers as they come, and [DONE]. An error is the last event."""
        try:
            async for completion in self._chunks():
                yield event(msgspec.json.encode(completion))
            yield DONE
        except ApiError as error:
            yield event(error.content)

    async def _chunks(self) -> AsyncIterator[Completion[Choice]]:
        options = self._endpoint.request.stream_options
        has_usage = options is not None and bool(options.include_usage)
        is_continuous = options is not None and bool(options.continuous_usage_stats)
        await self._endpoint.prepare(self.job)
        pending: dict[int, AnswerPart] = {}
        begun: set[int] = set()
        async for index, increment in self.job.increments():
            part = pending.setdefault(index, AnswerPart())
            part.add(increment)
            if not part.text and part.finish_reason is None and index in begun:
                continue  # send log-probabilities together with the text
            for choice in await self._endpoint.chunks(index, pending.pop(index), index not in begun):
                chunk = self._response(self._endpoint.chunk_kind, [choice])
                if has_usage:
                    chunk.usage = self.usage if is_continuous else None
                yield chunk
            begun.add(index)
        if has_usage:
            last = self._response(self._endpoint.chunk_kind, [])
            last.usage, last.metrics = self.usage, self._metrics()
            yield last

    def _response(self, kind: str, choices: list[Choice]) -> Completion[Choice]:
        model = self._endpoint.request.model
        return Completion(self.job.name, kind, self.created, model, choices)

    def _metrics(self) -> RequestMetrics | UnsetType | None:
        """What became of the drafts, if this server speculates and there is one answer."""
        most = self.job.client.config.num_speculative_tokens
        if not most:
            return UNSET
        if self.job.num_answers > 1:
            return None
        return RequestMetrics(SpeculativeDecoding.of(self.job.records[0].drafts, most))


def event(content: bytes) -> ServerSentEvent:
    """An event whose data is JSON."""
    return ServerSentEvent(content.decode(), sep="\n")
