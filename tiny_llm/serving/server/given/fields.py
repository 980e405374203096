"""The fields of requests: their types, ranges and what is done with them. The types are the table.

A field whose type names a use is read. `Ignored` fields are accepted, checked and have no effect. `Refused`
fields are part of OpenAI's protocol, but are not supported: only null will do. Any other field is unknown.
Both of these are answered with 400 and the field's name. Every field that may be null has null as its
default, as in OpenAI's specification.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_N, MAX_PROMPTS, MAX_STOP, MAX_BIASES, MAX_TOOLS, MAX_CHOICES = 64, 64, 16, 1024, 128, 1024

Ignored = Annotated[Any, Meta(description="Accepted and ignored.")]
Refused = Annotated[None, Meta(description="Not supported: only null will do.")]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TopK = Annotated[int, Meta(ge=-1)]
Priority = Annotated[int, Meta(ge=0, le=1000)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=1000)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
StopString = Annotated[str, Meta(min_length=1)]
Stop = StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP)]
Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
Schema = dict[str, Any]
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
TEXT_OR_IDS = {"anyOf": [{"type": "string", "minLength": 1}, IDS]}
PROMPTS = {"anyOf": [IDS, {"items": TEXT_OR_IDS, "maxItems": MAX_PROMPTS}]}
"""What a list of prompts holds, for the description of the protocol. msgspec cannot tell lists apart."""

Prompt = Text | Annotated[list[Any], Meta(min_length=1, extra_json_schema=PROMPTS)]


class Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An object of a request, in which every field is known."""


class StreamOptions(Strict, kw_only=True):
    """How to stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Ignored = None


class TextFormat(Strict, kw_only=True, tag="text", tag_field="type"):
    """Any text."""


class JsonObjectFormat(Strict, kw_only=True, tag="json_object", tag_field="type"):
    """Any JSON object."""


class NamedSchema(Strict, kw_only=True):
    """A JSON schema. It is kept whether `strict` is true or not."""

    name: Name
    description: str | None = None
    schema: Schema | None = None
    strict: bool | None = None


class JsonSchemaFormat(Strict, kw_only=True, tag="json_schema", tag_field="type"):
    """JSON that is valid by a schema."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(Strict, kw_only=True):
    """What the answer must look like: exactly one of the first five."""

    json: str | Schema | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[Text], Meta(min_length=1, max_length=MAX_CHOICES)] | None = None
    grammar: str | None = None
    disable_any_whitespace: bool | None = None
    disable_fallback: Ignored = None
    disable_additional_properties: Literal[False] | None = None
    whitespace_pattern: Refused = None
    structural_tag: Refused = None


class SamplingFields(Strict, kw_only=True):
    """The fields that both kinds of completions share."""

    model: str
    max_tokens: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    stop: Stop | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[Count, Bias], Meta(max_length=MAX_BIASES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # vLLM's extras
    top_k: TopK | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[Count], Meta(max_length=MAX_STOP)] | None = None
    priority: Priority | None = None
    structured_outputs: StructuredOutputs | None = None

    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None


class CompletionRequest(SamplingFields, kw_only=True):
    """The body of /v1/completions."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None


class TextPart(Strict, kw_only=True):
    """A part of a message's content. Images, sound and files are refused."""

    type: Literal["text"]
    text: str


class CalledFunction(Strict, kw_only=True):
    """A function and its arguments, which are JSON as text."""

    name: str
    arguments: str


class FunctionCall(Strict, kw_only=True):
    """A call that the assistant made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Strict, kw_only=True):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: Ignored = None
    refusal: Ignored = None
    annotations: Ignored = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[FunctionCall] | None = None
    tool_call_id: str | None = None
    function_call: Refused = None
    audio: Refused = None


class Function(Strict, kw_only=True, omit_defaults=True):
    """A function that the model may call. Its parameters are a JSON schema, kept by every call if strict."""

    name: Name
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(Strict, kw_only=True):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


class FunctionName(Strict, kw_only=True):
    """The name of a function."""

    name: str


class NamedTool(Strict, kw_only=True):
    """The tool that the model must call."""

    type: Literal["function"]
    function: FunctionName


class TemplateOptions(Strict, kw_only=True):
    """Options of the chat template."""

    enable_thinking: bool = False


class ChatRequest(SamplingFields, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    modalities: list[Literal["text"]] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    verbosity: Ignored = None
    reasoning_effort: Ignored = None
    audio: Refused = None
    prediction: Refused = None
    moderation: Refused = None
    web_search_options: Refused = None
    functions: Refused = None
    function_call: Literal["none", "auto"] | None = None


class TokenizeRequest(Strict, kw_only=True):
    """The body of /tokenize: a prompt, or messages for the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class DetokenizeRequest(Strict, kw_only=True):
    """The body of /detokenize."""

    model: str | None = None
    tokens: list[Count]
