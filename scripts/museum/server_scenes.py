"""What a client sees of a bug in the server of day 3.7.

Each function imports `tiny_llm` when it is called, and that may be another package each time.
"""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.checkpoints.models import load_by_name

TEXT = "And God saw the light, that it was good"


def stop() -> str:
    """Stream an answer that ends with a stop string of several tokens."""
    from tiny_llm.server.text_increments import TextIncrements

    _, tokenizer = load_by_name(SHIPPED_MODEL)
    stop_string = "light, that"
    increments = TextIncrements(tokenizer, (stop_string,))
    pieces: list[str] = []
    for token in tokenizer.encode(TEXT, add_special_tokens=False):
        pieces.append(increments.add(token))
        if stop_string in "".join(pieces) + increments.held:
            break
    pieces.append(increments.finish())
    return f"stop: {stop_string!r}\nthe client gets {[each for each in pieces if each]}"


def logprobs() -> str:
    """Stream three tokens with their log-probabilities."""
    from tiny_llm import Engine, SamplingParams
    from tiny_llm.server.engine_thread import LiveRequest
    from tiny_llm.server.text_increments import TextIncrements

    model, tokenizer = load_by_name(SHIPPED_MODEL)
    engine = Engine(model, tokenizer)
    request_id = engine.add_request(TEXT, SamplingParams(max_tokens=4, logprobs=0))
    live = LiveRequest(0, engine.requests[request_id], TextIncrements(tokenizer))
    lines = []
    while engine.has_unfinished_requests:
        if engine.step().sampled:
            increment = live.increment()
            lines.append(f"{increment.text!r:10} logprob {increment.logprobs[0].logprob:.3f}")
    return "\n".join(lines)


def burst() -> str:
    """Let five requests arrive at once at a server that takes two."""
    from tiny_llm.server.admission import Admission, QueueFullError

    admission = Admission(max_num_reqs=2)

    async def ask(number: int) -> str:
        try:
            with admission.reserve():
                await asyncio.sleep(0.01)  # tokenizing
                return "tokenized, then queued"
        except QueueFullError as error:
            return str(error)

    async def ask_all() -> list[str]:
        return await asyncio.gather(*map(ask, range(5)))

    answers = asyncio.run(ask_all())
    return "\n".join(f"request {number}  {answer}" for number, answer in enumerate(answers, 1))


def gone() -> str:
    """Close the connection after the third of a hundred steps."""
    from tiny_llm.server.disconnects import ClientGoneError, unless_disconnected

    num_steps = 0
    left = asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def compute() -> str:
        nonlocal num_steps
        while num_steps < 100:
            num_steps += 1
            if num_steps == 3:
                left.set()
            await asyncio.sleep(0.001)
        return "a whole answer"

    async def handle() -> str:
        try:
            return await unless_disconnected(receive, compute())
        except ClientGoneError as error:
            return str(error)

    end = asyncio.run(handle())
    return f"the client left in step 3 of 100\nthe server stopped after step {num_steps}: {end}"
