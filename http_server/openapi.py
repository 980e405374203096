"""The description of the protocol at /openapi.json, made from the types of requests and responses."""

from collections.abc import Sequence as Items
from typing import Any

import msgspec

from .anthropic_events import AnthropicEvent, AnthropicMessage, InputTokens
from .anthropic_fields import CountTokensRequest, MessagesRequest
from .completion_objects import (
    ChatChoice,
    ChatChunkChoice,
    Completion,
    CompletionChoice,
    DetokenizedText,
    ModelCard,
    ModelList,
    Status,
    Tokens,
    Version,
)
from .errors import ANTHROPIC, JSON, AnthropicErrorBody, ErrorBody
from .fields import ChatRequest, CompletionRequest, DetokenizeRequest, OtherServers, TokenizeRequest
from .response_events import ResponseEvent, ResponseObject
from .response_fields import ResponsesRequest

VERSION = "0.3.2"
"""Of the project."""

ENDPOINTS: dict[str, tuple[str, Any, Any]] = {
    "/v1/completions": ("Continue prompts.", CompletionRequest, Completion[CompletionChoice]),
    "/v1/chat/completions": ("Answer a conversation.", ChatRequest, Completion[ChatChoice]),
    "/v1/responses": ("Answer a conversation, in the newer protocol.", ResponsesRequest, ResponseObject),
    "/v1/messages": ("Answer a conversation, in Anthropic's protocol.", MessagesRequest, AnthropicMessage),
    "/v1/messages/count_tokens": ("Count the tokens of a prompt.", CountTokensRequest, InputTokens),
    "/v1/models": ("All models.", None, ModelList),
    "/v1/models/{name}": ("One model.", None, ModelCard),
    "/tokenize": ("Turn text into token ids.", TokenizeRequest, Tokens),
    "/detokenize": ("Turn token ids into text.", DetokenizeRequest, DetokenizedText),
    "/version": ("Which version this is.", None, Version),
    "/health": ("Whether the server is alive.", None, Status),
    "/ready": ("Whether the server takes requests.", None, Status),
}
"""For each path: what it does, the body of a request (None for GET), and the body of a response."""

CHUNKS: dict[str, Any] = {
    "/v1/completions": Completion[CompletionChoice],
    "/v1/chat/completions": Completion[ChatChunkChoice],
    "/v1/responses": ResponseEvent,
    "/v1/messages": AnthropicEvent,
}
"""For each path that can stream: the data of an event."""

QUESTION = [{"role": "user", "content": "Who made the world?"}]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
SCHEMA = {"name": "maker", "schema": {"type": "object", "properties": {"name": {"type": "string"}}}}
EXAMPLES: dict[str, dict[str, dict[str, Any]]] = {
    "/v1/completions": {
        "whole": {"prompt": "In the beginning", "max_tokens": 8},
        "streamed": {"prompt": ["And", [1, 2]], "max_tokens": 8, "logprobs": 2, **USAGE},
    },
    "/v1/chat/completions": {
        "whole": {"messages": QUESTION, "max_completion_tokens": 8, "n": 2},
        "streamed": {"messages": QUESTION, "logprobs": True, "top_logprobs": 2, **USAGE},
        "structured": {
            "messages": QUESTION,
            "response_format": {"type": "json_schema", "json_schema": SCHEMA},
        },
    },
    "/v1/responses": {
        "whole": {"input": "Who made the world?", "max_output_tokens": 8},
        "streamed": {"input": QUESTION, "instructions": "Be brief.", "stream": True},
    },
    "/v1/messages": {
        "whole": {"messages": QUESTION, "max_tokens": 8, "stop_sequences": ["God"]},
        "streamed": {"messages": QUESTION, "max_tokens": 8, "system": "Be brief.", "stream": True},
    },
    "/v1/messages/count_tokens": {"messages": {"messages": QUESTION}},
    "/tokenize": {"text": {"prompt": "In the beginning"}, "conversation": {"messages": QUESTION}},
    "/detokenize": {"ids": {"tokens": [1, 2, 3]}},
}
"""For each path, bodies of requests without the model."""

BODIES_WITH_MODEL = (CompletionRequest, ChatRequest, ResponsesRequest, MessagesRequest, CountTokensRequest)

ERRORS = {
    400: "A field or the JSON is wrong.",
    401: "The API key is missing or wrong.",
    403: "A page of another website sent this.",
    404: "The model does not exist.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    429: "The server is full.",
    500: "The step of this request failed.",
    503: "The server is loading, draining or stopped.",
}
"""What each status of an error means."""


class ErrorResponse(msgspec.Struct):
    """The body of every response that is no success."""

    error: ErrorBody


def openapi(model_names: Items[str]) -> dict[str, Any]:
    """The description, in OpenAPI 3.1, without the fields that are there for clients of other servers.

    Args:
        model_names: the names that requests may ask for.
    """
    types = [kind for _, *kinds in ENDPOINTS.values() for kind in kinds if kind is not None]
    types += [*CHUNKS.values(), ErrorResponse, AnthropicErrorBody]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(types, schemas, strict=True))
    for kind in BODIES_WITH_MODEL:
        properties = components[kind.__name__]["properties"]
        properties["model"] = {"enum": list(model_names)}
        for name in OtherServers.__struct_fields__:
            properties.pop(name, None)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tiny-llm", "version": VERSION},
        "paths": {
            path: operation(path, text, request, response, schema_of, model_names[0])
            for path, (text, request, response) in ENDPOINTS.items()
        },
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def operation(
    path: str, text: str, request: Any, response: Any, schema_of: dict[Any, Any], model: str
) -> dict[str, Any]:
    """Describe one endpoint, by its method."""
    found: dict[str, Any] = {"description": "Success.", "content": json_of(schema_of[response])}
    error = schema_of[AnthropicErrorBody if path.startswith(ANTHROPIC) else ErrorResponse]
    if path in CHUNKS:
        event = event_of([schema_of[CHUNKS[path]], error])
        found["content"] |= {"text/event-stream": {"schema": event}}
    failed = {
        str(status): {"description": meaning, "content": json_of(error)} for status, meaning in ERRORS.items()
    }
    described: dict[str, Any] = {"summary": text, "responses": {"200": found, **failed}}
    if request is not None:
        content = json_of(schema_of[request])
        examples = EXAMPLES[path].items()
        content[JSON]["examples"] = {name: {"value": {"model": model, **body}} for name, body in examples}
        described["requestBody"] = {"required": True, "content": content}
    if "{name}" in path:
        schema = {"type": "string", "minLength": 1}
        described["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": schema}]
    return {"get" if request is None else "post": described}


def json_of(schema: Any) -> dict[str, Any]:
    """A body of JSON with this schema."""
    return {JSON: {"schema": schema}}


def event_of(schemas: list[Any]) -> dict[str, Any]:
    """An event of a stream, whose data is JSON of one of these schemas, or [DONE]."""
    json = {"type": "string", "contentMediaType": JSON, "contentSchema": {"anyOf": schemas}}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, json]}},
    }
