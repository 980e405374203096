"""Send a load to a server over HTTP, and note when each token of each answer comes."""

import asyncio
import gc
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx2

from benches.load import LONG_PROMPT, Load, mixed_load
from tiny_llm.batching.prefill_metrics import percentile
from tiny_llm.generation.generate import Tokenizer
from tiny_llm.server.capacity import poisson_arrivals

SHARED = 256  # tokens at the beginning of every second long prompt
REFUSED = 429
NEVER = -100.0  # added to the logit of a token that must not come


@dataclass(frozen=True)
class HttpRequest:
    """What to send: a prompt in text, the number of tokens in its answer, and when, in seconds."""

    prompt: str
    num_output_tokens: int
    arrival: float = 0.0


@dataclass
class Sent:
    """What became of a request. All times are in seconds since the start of the run.

    Attributes:
        arrival: when it was to be sent.
        status: of the response; 0 without one.
        chunks: when each piece of the answer came.
        num_tokens: tokens of the answer, as the server counts them.
        ended: when the response ended.
        text: of the answer.
        retry_after: seconds that the server asks to wait; 0 if it doesn't.
        error: why it has no proper end; empty if it has.
    """

    arrival: float
    num_asked: int
    status: int = 0
    chunks: list[float] = field(default_factory=list)
    num_tokens: int = 0
    ended: float = 0.0
    retry_after: float = 0.0
    error: str = ""
    text: str = ""

    @property
    def is_answered(self) -> bool:
        """Whether all tokens came that were asked for."""
        return self.status == 200 and not self.error and self.num_tokens == self.num_asked

    @property
    def is_refused(self) -> bool:
        """Whether the server said that it has no room."""
        return self.status == REFUSED and not self.error


@dataclass(frozen=True)
class Felt:
    """What the users of a run felt, in seconds; waits are infinite if no request was answered."""

    gap_p99: float
    wait_p50: float
    retry_after: float
    num_answered: int
    num_refused: int
    num_lost: int
    seconds: float
    num_tokens: int

    @classmethod
    def of(cls, sent: Sequence[Sent]) -> "Felt":
        """Compute the numbers of a run."""
        answered = [each for each in sent if each.is_answered]
        gaps = [b - a for each in answered for a, b in zip(each.chunks, each.chunks[1:], strict=False)]
        waits = [each.chunks[0] - each.arrival for each in answered if each.chunks]
        return cls(
            percentile(gaps, 99) or 0.0,
            median(waits) if waits else float("inf"),
            median([each.retry_after for each in sent if each.is_refused] or [0.0]),
            len(answered),
            sum(each.is_refused for each in sent),
            sum(not each.is_answered and not each.is_refused for each in sent),
            max((each.ended for each in sent), default=0.0),
            sum(each.num_tokens for each in answered),
        )


def requests_of(tokenizer: Tokenizer, load: Load) -> list[HttpRequest]:
    """A load as text, which every server reads."""
    return [
        HttpRequest(tokenizer.decode(list(each.prompt_ids)), each.num_output_tokens, each.arrival)
        for each in load
    ]


def arriving(
    tokenizer: Tokenizer, stream: Sequence[int], rate: float, seconds: float, seed: int
) -> list[HttpRequest]:
    """Short and long prompts at random times. Every second long prompt begins like the others of its kind."""
    times = list(poisson_arrivals(rate, seconds, seed))
    load = mixed_load(stream, len(times), seed)
    texts = requests_of(tokenizer, load)
    shared = tokenizer.decode(list(stream[:SHARED]))
    requests, num_long = [], 0
    for request, text, arrival in zip(load, texts, times, strict=True):
        is_long = len(request.prompt_ids) >= LONG_PROMPT[0]
        num_long += is_long
        prompt = text.prompt
        if is_long and num_long % 2:
            prompt = shared + tokenizer.decode(list(request.prompt_ids[SHARED:]))
        requests.append(HttpRequest(prompt, text.num_output_tokens, arrival))
    return requests


def send(
    url: str,
    model: str,
    requests: Sequence[HttpRequest],
    end_ids: Iterable[int],
    patience: float = 60.0,
    stream: bool = True,
) -> list[Sent]:
    """Send each request at its time, whether or not the ones before have been answered.

    Args:
        url: of the server.
        model: the name that it knows.
        requests: what to send.
        end_ids: tokens that end an answer, which are forbidden: so every answer has its full length.
        patience: seconds after the last arrival, after which the connections are closed.
        stream: whether answers come token by token.
    """
    gc.collect()
    gc.freeze()
    bias = {str(id): NEVER for id in end_ids}
    return asyncio.run(_send_all(url, model, requests, bias, patience, stream))


async def _send_all(
    url: str,
    model: str,
    requests: Sequence[HttpRequest],
    bias: dict[str, float],
    patience: float,
    stream: bool,
) -> list[Sent]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
    sent = [Sent(each.arrival, each.num_output_tokens) for each in requests]
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=None) as client:
        start = time.perf_counter()
        last = max((each.arrival for each in requests), default=0.0)
        tasks = [
            asyncio.create_task(send_one(client, body_of(model, request, bias, stream), each, start))
            for request, each in zip(requests, sent, strict=True)
        ]
        _, late = await asyncio.wait(tasks, timeout=last + patience) if tasks else ((), ())
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return sent


def body_of(model: str, request: HttpRequest, bias: dict[str, float], stream: bool) -> dict[str, Any]:
    """The body of a request, with the logits of some tokens changed."""
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.num_output_tokens,
        "temperature": 0,
        "logit_bias": bias,
        "stream": stream,
    }
    return {**body, "stream_options": {"include_usage": True}} if stream else body


async def send_one(client: httpx2.AsyncClient, body: dict[str, Any], sent: Sent, start: float) -> None:
    """Send a request at its time, counted from `start`, and note what becomes of it."""
    await asyncio.sleep(max(0.0, sent.arrival - (time.perf_counter() - start)))
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            sent.status = response.status_code
            sent.retry_after = float(response.headers.get("Retry-After", 0.0))
            async for line in response.aiter_lines():
                _note(line.removeprefix("data: "), sent, time.perf_counter() - start)
    except asyncio.CancelledError:
        sent.error = "not answered in time"
    except (httpx2.HTTPError, json.JSONDecodeError) as error:
        sent.error = f"{type(error).__name__}: {error}"
    sent.ended = time.perf_counter() - start


def _note(data: str, sent: Sent, now: float) -> None:
    """Read a line: a piece of a stream, or a whole answer."""
    if not data.startswith("{") or sent.status != 200:
        return
    piece = json.loads(data)
    if "error" in piece:
        sent.error = str(piece["error"])
    if piece.get("choices"):
        sent.chunks.append(now)
        sent.text += piece["choices"][0].get("text", "")
    if piece.get("usage"):
        sent.num_tokens = piece["usage"]["completion_tokens"]


def write_trace(file: Path, sent: Sequence[Sent]) -> None:
    """Write a line of JSON per request."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(asdict(each)) + "\n" for each in sent), encoding="utf-8")
