"""The objects of responses, as OpenAI's specification has them. A field that is UNSET is left out."""

from typing import Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from .speculation import SpeculativeDecoding
from .tool_calls import ToolCall


class PromptTokensDetails(msgspec.Struct):
    """Of a prompt's tokens, those found in the prefix cache."""

    cached_tokens: int = 0


class Usage(msgspec.Struct):
    """Tokens of a request, added up over its prompts and answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(msgspec.Struct):
    """A token that was likely at some place."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct):
    """A token of an answer, and the likeliest tokens at its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities of an answer, or of a part of it."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class ChatMessage(msgspec.Struct):
    """A whole answer."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Delta(msgspec.Struct):
    """A part of an answer."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One of the n answers of a chat completion."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatChunkChoice(msgspec.Struct):
    """A part of one of the n answers."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class CompletionLogprobs(msgspec.Struct):
    """Log-probabilities in the older form: four lists, with an entry for each token."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


class CompletionChoice(msgspec.Struct):
    """One of the answers of a completion, or a part of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None


Choice = ChatChoice | ChatChunkChoice | CompletionChoice


C = TypeVar("C", bound=Choice)


class RequestMetrics(msgspec.Struct):
    """What serving an answer took."""

    speculative_decoding: SpeculativeDecoding


class Completion(msgspec.Struct, Generic[C]):
    """A response, or a chunk of a streamed one. `object` says of which kind."""

    id: str
    object: str
    created: int
    model: str
    choices: list[C]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | None = None
    metrics: RequestMetrics | UnsetType | None = UNSET


class ModelCard(msgspec.Struct):
    """A model that can be asked for."""

    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "tiny-llm"


class ModelList(msgspec.Struct):
    """All models."""

    data: list[ModelCard]
    object: str = "list"


class Status(msgspec.Struct):
    """The answer of /health and /ready."""

    status: str


class Version(msgspec.Struct):
    """The answer of /version, as vLLM has it."""

    version: str


class Tokens(msgspec.Struct):
    """The answer of /tokenize."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizedText(msgspec.Struct):
    """The answer of /detokenize."""

    prompt: str
