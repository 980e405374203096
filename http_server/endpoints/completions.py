"""/v1/completions: prompts are continued."""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from tiny_llm.batching.answer import TokenLogprobs

from ..api_route import STREAMED_USAGE, ApiRoute
from ..completion_objects import Choice, Completion, CompletionChoice, CompletionLogprobs
from ..endpoint import AnswerPart, Endpoint, bytes_of_logprobs
from ..fields import CompletionRequest
from ..job import Job
from ..params import completion_params, prompts_of
from ..serve_completion import serve_completion
from ..server import server_of
from ..text_codec import TextCodec
from ..token_texts import GrowingText, readable_key


async def completions(http: Request) -> Response:
    """Continue prompts."""
    server = server_of(http)
    request = await server.body(http, CompletionRequest)
    return await serve_completion(http, server.client, CompletionEndpoint(request, server.codec))


class CompletionEndpoint(Endpoint):
    """/v1/completions"""

    prefix, kind, chunk_kind, prompt_field = "cmpl", "text_completion", "text_completion", "prompt"

    def __init__(self, request: CompletionRequest, codec: TextCodec) -> None:
        super().__init__(codec)
        self.request: CompletionRequest = request
        self.params = completion_params(request)
        self._prompts = prompts_of(request)
        self.num_prompts = len(self._prompts)
        self.num_scored = self.num_prompts if request.echo and request.logprobs is not None else 0
        self.is_silent = request.max_tokens == 0
        self._scored: list[AnswerPart] = []  # the prompts as answers, if they are scored

    async def encode(self) -> list[tuple[int, ...]]:
        return [
            await self.codec.encode(prompt) if isinstance(prompt, str) else prompt for prompt in self._prompts
        ]

    async def prepare(self, job: Job) -> None:
        if self.num_scored:
            self._scored = await scored_prompts(job)

    async def choice(self, index: int, part: AnswerPart) -> Choice:
        part = self._shown(part)
        text = await self._echo(index) + part.text
        return CompletionChoice(index, text, await self._logprobs(index, part), part.finish_reason)

    async def chunks(self, index: int, part: AnswerPart, is_first: bool) -> list[Choice]:
        part = self._shown(part)
        text = (await self._echo(index) if is_first else "") + part.text
        if not text and not part.logprobs and part.finish_reason is None:
            return []
        return [CompletionChoice(index, text, await self._logprobs(index, part), part.finish_reason)]

    async def _echo(self, index: int) -> str:
        if not self.request.echo:
            return ""
        prompt = self._prompts[index // (self.request.n or 1)]
        return prompt if isinstance(prompt, str) else await self.codec.decode(prompt)

    def _shown(self, part: AnswerPart) -> AnswerPart:
        """What a client sees of a part."""
        return AnswerPart(finish_reason="length") if self.is_silent else part

    async def _logprobs(self, index: int, part: AnswerPart) -> CompletionLogprobs | None:
        if self.request.logprobs is None:
            return None
        text = self.growing[index]
        logprobs = CompletionLogprobs()
        if self._scored and text.is_empty:
            await self._append(logprobs, self._scored[index // (self.request.n or 1)], text)
        await self._append(logprobs, part, text)
        return logprobs

    async def _append(self, logprobs: CompletionLogprobs, part: AnswerPart, text: GrowingText) -> None:
        """Append the entries of some tokens. The first token of a prompt has nothing before it."""
        bytes_of = await bytes_of_logprobs(self.codec, part)
        scores: list[TokenLogprobs | None] = [None] * (len(part.token_ids) - len(part.logprobs))
        scores += part.logprobs
        for token, each in zip(part.token_ids, scores, strict=True):
            top = None
            if each is not None:
                top = {readable_key(text.choose(bytes_of[id])): logprob for id, logprob in reversed(each.top)}
            logprobs.top_logprobs.append(top)
            logprobs.token_logprobs.append(None if each is None else each.logprob)
            logprobs.text_offset.append(text.num_characters)
            logprobs.tokens.append(readable_key(text.add(bytes_of[token])))


async def scored_prompts(job: Job) -> list[AnswerPart]:
    """The log-probabilities of a job's prompts, as parts that hold all tokens of the prompts.

    Raises:
        ApiError: a step failed.
    """
    parts = [AnswerPart(list(prompt)) for prompt in job.prompts]
    longer = [number for number, part in enumerate(parts) if len(part.token_ids) > 1]
    scoring = replace(
        job,
        name=f"{job.name}-prompt",
        prompts=[job.prompts[number] for number in longer],
        n=1,
        params=replace(job.params, min_tokens=0, structured_outputs=None),
        is_scoring=True,
        records={},
        _tickets=[],
    )
    try:
        async for index, increment in scoring.increments():
            parts[longer[index]].logprobs += increment.logprobs
    finally:
        scoring.abort()
    return parts


ROUTE = ApiRoute(
    "/v1/completions",
    completions,
    Completion[CompletionChoice],
    CompletionRequest,
    event=Completion[CompletionChoice],
    examples={
        "whole": {"prompt": "In the beginning", "max_tokens": 8},
        "streamed": {"prompt": ["And", [1, 2]], "max_tokens": 8, "logprobs": 2, **STREAMED_USAGE},
    },
)
