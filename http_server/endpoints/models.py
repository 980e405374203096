"""/v1/models: which models are served."""

from starlette.requests import Request
from starlette.responses import Response

from ..api_route import ApiRoute
from ..completion_objects import ModelCard, ModelList
from ..server import Server, as_json, server_of


async def models(http: Request) -> Response:
    """All models."""
    server = server_of(http)
    return as_json(ModelList([card(server, name) for name in server.config.model_names]))


async def one_model(http: Request) -> Response:
    """One model."""
    server = server_of(http)
    name = http.path_params["name"]
    server.check_model(name)
    return as_json(card(server, name))


def card(server: Server, name: str) -> ModelCard:
    """What /v1/models says of a model."""
    return ModelCard(name, server.created, server.client.max_model_len)


ROUTES = (ApiRoute("/v1/models", models, ModelList), ApiRoute("/v1/models/{name:path}", one_model, ModelCard))
