"""Text to token ids and back, for clients.

All requests share one tokenizer. So that completions need not wait for a crowd of these, only a few are in
its queue at a time, and none is long; the others wait in front of it. Converting a long list of tokens also
stops all other Python code, the event loop included.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tiny_llm.server.disconnects import unless_disconnected

from ..api_route import QUESTION, ApiRoute
from ..completion_objects import DetokenizedText, Tokens
from ..conversation import encode_messages, end_of_prompt
from ..errors import ApiError
from ..fields import DetokenizeRequest, TokenizeRequest
from ..params import template_options
from ..server import Server, as_json, server_of
from ..text_codec import TextCodec

T = TypeVar("T")
MAX_BODY_BYTES = 256 * 2**10


async def tokenize(http: Request) -> Response:
    """Turn text into token ids."""
    server = server_of(http)
    request = await server.body(http, TokenizeRequest, MAX_BODY_BYTES)
    server.client.check_ready()
    if (request.prompt is None) == (request.messages is None):
        raise ApiError(400, "give either prompt or messages", "prompt", "invalid_value")
    try:
        ids = await in_turn(http, server, lambda: token_ids(server.codec, request))
    except ValueError as error:
        field = "prompt" if request.messages is None else "messages"
        raise ApiError(400, str(error), field, "invalid_value") from None
    return as_json(Tokens(list(ids), len(ids), server.client.max_model_len))


async def token_ids(codec: TextCodec, request: TokenizeRequest) -> tuple[int, ...]:
    """Token ids of a prompt, which may be empty, or of messages."""
    if request.messages is not None:
        if request.add_special_tokens:
            message = "only the chat template adds special tokens to messages: leave out add_special_tokens"
            raise ApiError(400, message, "add_special_tokens", "unsupported_value")
        options = template_options(request.chat_template_kwargs) | end_of_prompt(request)
        tools = () if request.tool_choice == "none" else request.tools or ()
        return await encode_messages(codec, request.messages, tools, options)
    return (
        await codec.encode(request.prompt, request.add_special_tokens is not False) if request.prompt else ()
    )


async def detokenize(http: Request) -> Response:
    """Turn token ids into text."""
    server = server_of(http)
    request = await server.body(http, DetokenizeRequest, MAX_BODY_BYTES)
    server.client.check_ready()
    vocab_size = server.client.vocab_size
    for place, token in enumerate(request.tokens):
        if token >= vocab_size:
            message = f"token {token} does not exist: the vocabulary ends with {vocab_size - 1}"
            raise ApiError(400, message, f"tokens[{place}]", "invalid_value")
    text = await in_turn(http, server, lambda: server.codec.decode(request.tokens))
    return as_json(DetokenizedText(text))


async def in_turn(http: Request, server: Server, work: Callable[[], Awaitable[T]]) -> T:
    """Use the tokenizer when it is this request's turn, unless the client goes.

    Raises:
        ClientGoneError: the client did not wait.
    """

    async def wait_and_work() -> T:
        async with server.texts:
            return await work()

    return await unless_disconnected(http.receive, wait_and_work())


ROUTES = (
    ApiRoute(
        "/tokenize",
        tokenize,
        Tokens,
        TokenizeRequest,
        examples={"text": {"prompt": "In the beginning"}, "conversation": {"messages": QUESTION}},
    ),
    ApiRoute(
        "/detokenize", detokenize, DetokenizedText, DetokenizeRequest, examples={"ids": {"tokens": [1, 2, 3]}}
    ),
)
