"""What endpoints that generate text differ in: prompts, choices and chunks."""

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass, field

from tiny_llm.batching.answer import TokenLogprobs
from tiny_llm.generation.sampler import SamplingParams
from tiny_llm.server.mailbox import Increment

from .completion_objects import Choice
from .fields import ChoiceFields
from .job import Job
from .text_codec import TextCodec
from .token_texts import GrowingText, TokenBytes


@dataclass
class AnswerPart:
    """A part of an answer, or all of it."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, increment: Increment) -> None:
        """Append what a step added."""
        self.token_ids += increment.token_ids
        self.text += increment.text
        self.logprobs += increment.logprobs
        self.finish_reason = increment.finish_reason


class Endpoint(ABC):
    """An endpoint that generates text.

    Args:
        request: the body.
        codec: encodes and decodes text.

    Attributes:
        prefix: of the ids of responses.
        kind, chunk_kind: the field `object` of a response and of a chunk.
        prompt_field: the field that holds the prompt.
        grammar_field: the field that holds the grammar, if there is one.
        params: how to sample.
        num_prompts: number of prompts.
        num_scored: number of prompts whose own log-probabilities are asked for: all, or none.
        is_silent: whether no token is to be shown. The engine samples one all the same.
        growing: the text of each answer, as far as its log-probabilities were asked for.
    """

    prefix: str
    kind: str
    chunk_kind: str
    prompt_field: str
    grammar_field = "structured_outputs"
    request: ChoiceFields
    params: SamplingParams
    num_prompts: int
    num_scored = 0
    is_silent = False

    def __init__(self, codec: TextCodec) -> None:
        self.codec = codec
        self.growing: defaultdict[int, GrowingText] = defaultdict(GrowingText)

    @abstractmethod
    async def encode(self) -> list[tuple[int, ...]]:
        """Token ids of each prompt. Raise ValueError if a prompt cannot be encoded."""

    async def prepare(self, job: Job) -> None:  # noqa: B027  most endpoints need nothing
        """Compute what the choices need besides the answers of the job."""

    @abstractmethod
    async def choice(self, index: int, part: AnswerPart) -> Choice:
        """A choice of a whole response."""

    @abstractmethod
    async def chunks(self, index: int, part: AnswerPart, is_first: bool) -> list[Choice]:
        """The choices of the chunks for a part of a streamed answer, one per chunk."""


async def bytes_of_logprobs(codec: TextCodec, part: AnswerPart) -> dict[int, TokenBytes]:
    """What the tokens that the log-probabilities of a part mention add to a text."""
    likely = [id for each in part.logprobs for id, _ in each.top]
    return await codec.bytes_of([*part.token_ids, *likely])
