"""The client of EleutherAI's evaluation harness, unmodified, against a server with the shipped model."""

from typing import Any

import mlx.core as mx
import pytest
from lm_eval.models.openai_completions import LocalCompletionsAPI

from tests.clients import SAMPLED
from tests.clients.serving import MODEL
from tiny_llm import load

pytestmark = SAMPLED
TEXTS = [("In the beginning", " God created the heaven"), ("And the earth", " was 😀"), ("", "Amen. So")]


def score(text: list[int], num_context: int) -> tuple[float, bool]:
    """The log-probability of what follows the context, and whether it is what the model would have said."""
    model, _ = load(MODEL)
    logits = model(mx.array([text]))[0].astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    places = range(num_context, len(text))
    likeliest = mx.argmax(logprobs, axis=-1).tolist()
    return (
        sum(logprobs[place - 1, text[place]].item() for place in places),
        all(likeliest[place - 1] == text[place] for place in places),
    )


@pytest.mark.parametrize("settings", [{}, {"batch_size": 3}, {"num_concurrent": 2}])
def test_loglikelihood(url: str, settings: dict[str, Any]) -> None:
    harness = LocalCompletionsAPI(
        model=str(MODEL), base_url=f"{url}/v1/completions", tokenizer_backend="huggingface", **settings
    )
    harness.model = MODEL.name  # the tokenizer comes from its folder
    tokenizer = harness.tokenizer
    requests = []
    for context, continuation in TEXTS:
        ids = [tokenizer.encode(context) or [harness.eot_token_id], tokenizer.encode(continuation)]
        requests.append(((context, continuation), *ids))
    model, _ = load(MODEL)
    context = requests[0][1]
    likeliest = int(mx.argmax(model(mx.array([context]))[0, -1]).item())
    requests.append((("", ""), context, [likeliest]))
    found = harness._loglikelihood_tokens(requests)
    for (_, context, continuation), (logprob, is_greedy) in zip(requests, found, strict=True):
        expected = score([*context, *continuation], len(context))
        assert logprob == pytest.approx(expected[0], abs=0.05)
        assert is_greedy == expected[1]
    assert found[-1][1] is True
