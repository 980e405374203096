"""/server_info, /model_info and /get_load, as SGLang has them: what routers ask a server for.

A router learns the model's name from the first, and sends requests where the last says that least is waiting.
Each of the first two has an older path, which begins with get_.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .. import VERSION
from ..api_route import ApiRoute
from ..server import as_json, server_of


class ServerInfo(msgspec.Struct):
    """The answer of /server_info."""

    served_model_name: str
    version: str
    max_model_len: int
    max_total_tokens: int
    max_running_requests: int
    max_num_reqs: int
    dp_size: int = 1


class ModelInfo(msgspec.Struct):
    """The answer of /model_info."""

    served_model_name: str
    max_model_len: int
    vocab_size: int
    is_generation: bool = True


class WorkerLoad(msgspec.Struct):
    """What requests have that are not finished: the tokens of their prompts, and of their answers so far."""

    num_reqs: int
    num_waiting_reqs: int
    num_tokens: int
    dp_rank: int = 0


async def server_info(http: Request) -> Response:
    """The server's name and limits.

    503 while it loads or drains.
    """
    server = server_of(http)
    client, config = server.client, server.config
    client.check_ready()
    assert client.loaded is not None
    return as_json(
        ServerInfo(
            config.model_names[0],
            VERSION,
            client.max_model_len,
            client.loaded.num_blocks * client.loaded.block_size,
            config.scheduler.max_num_seqs,
            config.max_num_reqs,
        )
    )


async def model_info(http: Request) -> Response:
    """The model's name and sizes.

    503 while it loads or drains.
    """
    server = server_of(http)
    client = server.client
    client.check_ready()
    return as_json(ModelInfo(server.config.model_names[0], client.max_model_len, client.vocab_size))


async def get_load(http: Request) -> Response:
    """How much work is left."""
    server = server_of(http)
    records = [record for _, record in server.client.records(server.config.max_num_reqs)]
    num_waiting = sum(record.started is None for record in records)
    num_tokens = sum(record.num_prompt_tokens + record.num_tokens for record in records)
    return as_json([WorkerLoad(len(records), num_waiting, num_tokens)])


ROUTES = (
    *(ApiRoute(path, server_info, ServerInfo) for path in ("/server_info", "/get_server_info")),
    *(ApiRoute(path, model_info, ModelInfo) for path in ("/model_info", "/get_model_info")),
    ApiRoute("/get_load", get_load, list[WorkerLoad]),
)
