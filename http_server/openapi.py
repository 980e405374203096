"""The description of the protocol at /openapi.json, made from the types of requests and responses."""

from collections.abc import Sequence as Items
from typing import Any

import msgspec

from . import VERSION
from .api import API
from .api_route import ApiRoute
from .errors import ANTHROPIC, JSON, AnthropicErrorBody, ErrorBody
from .fields import OtherServers

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
    bodies = [each.request for each in API if each.request is not None]
    types = [
        *bodies,
        *(each.response for each in API),
        *(each.event for each in API if each.event is not None),
    ]
    types += [ErrorResponse, AnthropicErrorBody]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(types, schemas, strict=True))
    for kind in bodies:
        properties = components[kind.__name__]["properties"]
        if "anyOf" not in properties["model"]:  # it must be given
            properties["model"] = {"enum": list(model_names)}
        for name in OtherServers.__struct_fields__ if issubclass(kind, OtherServers) else ():
            del properties[name]
    return {
        "openapi": "3.1.0",
        "info": {"title": "tiny-llm", "version": VERSION},
        "paths": {each.path.replace(":path", ""): operation(each, schema_of, model_names[0]) for each in API},
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def operation(row: ApiRoute, schema_of: dict[Any, Any], model: str) -> dict[str, Any]:
    """Describe one path, by its method."""
    found: dict[str, Any] = {"description": "Success.", "content": json_of(schema_of[row.response])}
    error = schema_of[AnthropicErrorBody if row.path.startswith(ANTHROPIC) else ErrorResponse]
    if row.event is not None:
        event = event_of([schema_of[row.event], error])
        found["content"] |= {"text/event-stream": {"schema": event}}
    failed = {
        str(status): {"description": meaning, "content": json_of(error)} for status, meaning in ERRORS.items()
    }
    described: dict[str, Any] = {"summary": row.summary, "responses": {"200": found, **failed}}
    if row.request is not None:
        content = json_of(schema_of[row.request])
        examples = row.examples.items()
        content[JSON]["examples"] = {name: {"value": {"model": model, **body}} for name, body in examples}
        described["requestBody"] = {"required": True, "content": content}
    if "{name" in row.path:
        schema = {"type": "string", "minLength": 1}
        described["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": schema}]
    return {row.method.lower(): described}


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
