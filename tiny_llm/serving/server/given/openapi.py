"""The description of the protocol at /openapi.json, made from the types of requests and responses."""

from typing import Any

import msgspec

from .errors import ErrorBody
from .fields import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from .responses import ChatChoice, Completion, CompletionChoice, DetokenizedText, ModelCard, ModelList, Tokens

ENDPOINTS: dict[str, tuple[str, Any, Any]] = {
    "/v1/completions": ("Continue prompts.", CompletionRequest, Completion[CompletionChoice]),
    "/v1/chat/completions": ("Answer a conversation.", ChatRequest, Completion[ChatChoice]),
    "/v1/models": ("All models.", None, ModelList),
    "/v1/models/{name}": ("One model.", None, ModelCard),
    "/tokenize": ("Turn text into token ids.", TokenizeRequest, Tokens),
    "/detokenize": ("Turn token ids into text.", DetokenizeRequest, DetokenizedText),
}
"""For each path: what it does, the body of a request (None for GET), and the body of a response."""


class ErrorResponse(msgspec.Struct):
    """The body of every response that is no success."""

    error: ErrorBody


def openapi() -> dict[str, Any]:
    """The description, in OpenAPI 3.1."""
    types = [kind for _, *kinds in ENDPOINTS.values() for kind in kinds if kind is not None]
    schemas, components = msgspec.json.schema_components(
        [*types, ErrorResponse], ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip([*types, ErrorResponse], schemas, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {"title": "tiny-llm", "version": "0.1.0"},
        "paths": {
            path: {"get" if request is None else "post": operation(path, text, request, response, schema_of)}
            for path, (text, request, response) in ENDPOINTS.items()
        },
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def operation(path: str, text: str, request: Any, response: Any, schema_of: dict[Any, Any]) -> dict[str, Any]:
    """Describe one endpoint."""
    found: dict[str, Any] = {"description": "Success.", "content": json_of(schema_of[response])}
    if "completions" in path:
        found["content"] |= {"text/event-stream": {"schema": {"type": "string"}}}
    failed = {"description": "An error.", "content": json_of(schema_of[ErrorResponse])}
    described: dict[str, Any] = {"summary": text, "responses": {"200": found, "default": failed}}
    if request is not None:
        described["requestBody"] = {"required": True, "content": json_of(schema_of[request])}
    if "{name}" in path:
        described["parameters"] = [
            {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return described


def json_of(schema: Any) -> dict[str, Any]:
    """A body of JSON with this schema."""
    return {"application/json": {"schema": schema}}
