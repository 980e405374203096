"""Requests to serve: their prompts, the lengths of their answers, and when they arrive."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from random import Random

from scripts.checkpoints.files import resolve_checkpoint
from scripts.run.runs import read_prompts
from tiny_llm.generation.generate import Tokenizer

SHORT_PROMPT, LONG_PROMPT = (8, 48), (384, 768)  # tokens, fewest and most
SHARE_OF_LONG = 0.25
ANSWER = (16, 48)  # tokens, fewest and most


@dataclass(frozen=True)
class LoadRequest:
    """A prompt, how many tokens its answer has, and when it arrives, in seconds from the start."""

    prompt_ids: tuple[int, ...]
    num_output_tokens: int
    arrival: float = 0.0


Load = tuple[LoadRequest, ...]


def token_stream(model: str, tokenizer: Tokenizer) -> list[int]:
    """All tokens of the demo's prompts of a model, one prompt behind the other."""
    prompts = read_prompts(None, resolve_checkpoint(model))
    return [token for prompt in prompts for token in tokenizer.encode(prompt)]


def take(stream: Sequence[int], start: int, num_tokens: int) -> tuple[int, ...]:
    """So many tokens of a stream from a place on, which goes round at its end."""
    start %= len(stream)
    return tuple(islice(cycle([*stream[start:], *stream[:start]]), num_tokens))


def mixed_load(stream: Sequence[int], num_requests: int, seed: int) -> Load:
    """Short and long prompts, all there at the start.

    Each begins anywhere in the stream, so that hardly two begin alike. The number of long ones is fixed,
    their places are drawn: two seeds ask for nearly the same work.
    """
    random = Random(seed)
    num_long = round(SHARE_OF_LONG * num_requests)
    bounds = [LONG_PROMPT] * num_long + [SHORT_PROMPT] * (num_requests - num_long)
    random.shuffle(bounds)
    return tuple(
        LoadRequest(
            take(stream, random.randrange(len(stream)), random.randint(*length)), random.randint(*ANSWER)
        )
        for length in bounds
    )


def with_poisson_arrivals(load: Load, rate: float, seed: int) -> Load:
    """The same requests at random moments, `rate` per second on average, whether or not the server keeps up.

    One seed draws the same moments for every rate, but for their scale.
    """
    random = Random(seed)
    now = 0.0
    arriving = []
    for request in load:
        now += random.expovariate(1.0)
        arriving.append(replace(request, arrival=now / rate))
    return tuple(arriving)


def decode_load(stream: Sequence[int], num_requests: int, num_tokens: int) -> Load:
    """Nothing but decodes: prompts of one token."""
    return tuple(LoadRequest(take(stream, 7 * i, 1), num_tokens) for i in range(num_requests))


def prefill_load(stream: Sequence[int], num_requests: int, num_tokens: int) -> Load:
    """Nothing but prompts: answers of one token."""
    return tuple(LoadRequest(take(stream, 97 * i, num_tokens), 1) for i in range(num_requests))
