"""The fields of requests: their types, ranges and what is done with them. The types are the table.

They are OpenAI's, vLLM's and SGLang's. A field whose type names a use is read. `Ignored` fields are accepted,
checked and have no effect, since they can't change what an answer means. `Refused` fields ask for what this
server can't do: only null will do. The types between `Off` and `Empty` are for such fields that clients send
with their default. Values that a type leaves out are answered with 400 and the field's name. Fields that no
type has are ignored, and named in the response. Every field that may be null has null as its default, as in
OpenAI's specification.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_N, MAX_PROMPTS, MAX_STOP, MAX_BIASES, MAX_TOOLS, MAX_CHOICES = 64, 64, 16, 1024, 128, 1024

Ignored = Annotated[Any, Meta(description="Accepted and ignored.")]
Refused = Annotated[None, Meta(description="Not supported: only null will do.")]
DEFAULT_ONLY = "Not supported: only the default will do."
Off = Annotated[Literal[False] | None, Meta(description=DEFAULT_ONLY)]
On = Annotated[Literal[True] | None, Meta(description=DEFAULT_ONLY)]
Zero = Annotated[Literal[0] | None, Meta(description=DEFAULT_ONLY)]
One = Annotated[Literal[1] | None, Meta(description=DEFAULT_ONLY)]
Unlimited = Annotated[Literal[-1] | None, Meta(description=DEFAULT_ONLY)]
Nothing = Annotated[list[Any], Meta(max_length=0)]
Empty = Annotated[
    Nothing | Annotated[dict[str, Any], Meta(max_length=0)] | None, Meta(description=DEFAULT_ONLY)
]
MaxTokens = Annotated[int, Meta(ge=-1, description="As many as fit with -1.")]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TopK = Annotated[int, Meta(ge=-1)]
PriorityField = Annotated[int, Meta(ge=0, le=1000)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=1000)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
StopString = Annotated[str, Meta(min_length=1)]
StopField = StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP)]
Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
Schema = dict[str, Any]
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
TEXT_OR_IDS = {"anyOf": [{"type": "string", "minLength": 1}, IDS]}
PROMPTS = {"anyOf": [IDS, {"items": TEXT_OR_IDS, "maxItems": MAX_PROMPTS}]}
"""What a list of prompts holds, for the description of the protocol. msgspec cannot tell lists apart."""

Prompt = Text | Annotated[list[Any], Meta(min_length=1, extra_json_schema=PROMPTS)]


class RequestObject(msgspec.Struct, kw_only=True):
    """An object of a request. The server ignores what it has beyond these fields, and says so."""


class StreamOptions(RequestObject, kw_only=True):
    """How to stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Ignored = None


class TextFormat(RequestObject, kw_only=True, tag="text", tag_field="type"):
    """Any text."""


class JsonObjectFormat(RequestObject, kw_only=True, omit_defaults=True, tag="json_object", tag_field="type"):
    """Any JSON object. Other servers take a schema here; this one takes it as `json_schema`."""

    schema: Refused = None


class NamedSchema(RequestObject, kw_only=True):
    """A JSON schema. It is kept whether `strict` is true or not."""

    name: Name
    description: str | None = None
    schema: Schema | None = None
    strict: bool | None = None


class JsonSchemaFormat(RequestObject, kw_only=True, tag="json_schema", tag_field="type"):
    """JSON that is valid by a schema."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(RequestObject, kw_only=True):
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


class OtherServers(RequestObject, kw_only=True):
    """The fields of vLLM and SGLang that mean nothing here, or for which only the default will do."""

    custom_labels: Ignored = None
    data_parallel_rank: Ignored = None
    disagg_prefill_dp_rank: Ignored = None
    images_config: Ignored = None
    length_penalty: Ignored = None
    mm_processor_kwargs: Ignored = None
    ngram_corpus_id: Ignored = None
    request_id: Ignored = None
    return_mm_kwargs: Ignored = None
    return_token_offsets: Ignored = None
    rid: Ignored = None
    routed_dp_rank: Ignored = None
    routed_experts_prompt_start: Ignored = None
    routed_experts_start_len: Ignored = None
    session_id: Ignored = None
    skip_special_tokens: Ignored = None
    spaces_between_special_tokens: Ignored = None
    stream_interval: Ignored = None
    truncation_side: Ignored = None

    allowed_token_ids: Refused = None
    bad_words: Empty = None
    bootstrap_host: Refused = None
    bootstrap_port: Refused = None
    bootstrap_room: Refused = None
    custom_logit_processor: Refused = None
    custom_params: Empty = None
    ebnf: Refused = None
    ec_transfer_params: Empty = None
    extra_key: Refused = None
    guided_choice: Refused = None
    guided_grammar: Refused = None
    guided_json: Refused = None
    guided_regex: Refused = None
    include_stop_str_in_output: Off = None
    json_schema: Refused = None
    kv_transfer_params: Empty = None
    logprob_token_ids: Empty = None
    lora_path: Refused = None
    no_stop_trim: Off = None
    prompt_logprobs: Refused = None
    regex: Refused = None
    repetition_detection: Refused = None
    return_cached_tokens_details: Off = None
    return_hidden_states: Off = None
    return_routed_experts: Off = None
    return_token_ids: Off = None
    return_tokens_as_token_ids: Off = None
    sampling_seed: Refused = None
    session_params: Empty = None
    stop_regex: Empty = None
    thinking_token_budget: Unlimited = None
    truncate_prompt_tokens: Refused = None
    use_beam_search: Off = None
    vllm_xargs: Empty = None
    watermarking: Off = None


class SamplingFields(OtherServers, kw_only=True):
    """The fields that all requests for text share."""

    model: str
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stop: StopField | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[Count, Bias], Meta(max_length=MAX_BIASES)] | None = None
    stream: bool | None = None

    # vLLM's extras
    top_k: TopK | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[Count], Meta(max_length=MAX_STOP)] | None = None
    priority: PriorityField | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: Text | None = None

    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None


class ChoiceFields(SamplingFields, kw_only=True):
    """The fields that both kinds of completions share."""

    max_tokens: MaxTokens | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    stream_options: StreamOptions | None = None


class CompletionRequest(ChoiceFields, kw_only=True):
    """The body of /v1/completions."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    best_of: One = None
    suffix: Annotated[Literal[""] | None, Meta(description=DEFAULT_ONLY)] = None
    add_special_tokens: On = None
    prompt_embeds: Refused = None
    response_format: TextFormat | None = None


class TextPart(RequestObject, kw_only=True, tag="text", tag_field="type"):
    """A text as a part of a message's content."""

    text: str
    prompt_cache_breakpoint: Ignored = None


class RefusalPart(RequestObject, kw_only=True, tag="refusal", tag_field="type"):
    """What an assistant said instead of an answer."""

    refusal: str


class ThinkingPart(RequestObject, kw_only=True, tag="thinking", tag_field="type"):
    """What an assistant thought before it answered."""

    thinking: str


ContentPart = TextPart | RefusalPart | ThinkingPart
"""A part of a message's content. Images, sound and files are refused."""


class CalledFunction(RequestObject, kw_only=True):
    """A function and its arguments, which are JSON as text."""

    name: str
    arguments: str


class FunctionCall(RequestObject, kw_only=True):
    """A call that the assistant made."""

    id: str
    type: Literal["function"] = "function"
    index: Ignored = None
    function: CalledFunction


class Message(RequestObject, kw_only=True):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: Ignored = None
    refusal: str | None = None
    annotations: Ignored = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[FunctionCall] | None = None
    tool_call_id: str | None = None
    tools: Empty = None
    function_call: Refused = None
    audio: Refused = None


class Function(RequestObject, kw_only=True, omit_defaults=True):
    """A function that the model may call. Its parameters are a JSON schema, kept by every call if strict."""

    name: Name
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None
    defer_loading: Off = None


class Tool(RequestObject, kw_only=True, omit_defaults=True):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function
    defer_loading: Off = None


class FunctionName(RequestObject, kw_only=True):
    """The name of a function."""

    name: str


class NamedTool(RequestObject, kw_only=True):
    """The tool that the model must call."""

    type: Literal["function"]
    function: FunctionName


class Reasoning(RequestObject, kw_only=True):
    """How much the model should think. Only the chat template can make it do so."""

    effort: str | None = None
    summary: Ignored = None
    generate_summary: Ignored = None


class ChatRequest(ChoiceFields, kw_only=True):
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
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    include_reasoning: bool | None = None
    reasoning: Reasoning | None = None
    reasoning_effort: str | float | None = None
    verbosity: Ignored = None
    prediction: Ignored = None
    max_dynamic_patch: Ignored = None
    media_io_kwargs: Ignored = None
    min_dynamic_patch: Ignored = None
    use_audio_in_video: Ignored = None
    add_special_tokens: Off = None
    audio: Refused = None
    chat_template: Refused = None
    documents: Empty = None
    echo: Off = None
    functions: Empty = None
    input_ids: Refused = None
    moderation: Refused = None
    return_meta_info: Off = None
    return_prompt_text: Off = None
    return_prompt_token_ids: Off = None
    separate_reasoning: On = None
    stream_reasoning: On = None
    task: Refused = None
    web_search_options: Refused = None
    function_call: Literal["none", "auto"] | None = None


class TokenizeRequest(RequestObject, kw_only=True):
    """The body of /tokenize: a prompt, or messages for the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: Ignored = None
    mm_processor_kwargs: Ignored = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    chat_template: Refused = None
    return_token_strs: Off = None


class DetokenizeRequest(RequestObject, kw_only=True):
    """The body of /detokenize."""

    model: str | None = None
    tokens: list[Count]
    skip_special_tokens: Off = None
