"""What a user sees of a bug in the model or in the batch of week 2.

Each function imports `tiny_llm` when it is called, and that may be another package each time.
"""

import mlx.core as mx

from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.checkpoints.models import load_by_name

PROMPT = "In the beginning God created"
SHORT = "And the king said"
LONG = (
    "And it came to pass in those days, that there went out a decree from Caesar Augustus, that all the world"
)


def pairs() -> str:
    """Continue a prompt."""
    from tiny_llm import make_sampler, simple_generate

    model, tokenizer = load_by_name(SHIPPED_MODEL)
    text = simple_generate(model, tokenizer, PROMPT, make_sampler(0), max_tokens=32)
    return answer_to(PROMPT, text)


def corner() -> str:
    """Continue a prompt with a KV cache."""
    from tiny_llm import make_sampler, simple_generate_with_kv_cache

    model, tokenizer = load_by_name(SHIPPED_MODEL)
    text = simple_generate_with_kv_cache(model, tokenizer, PROMPT, make_sampler(0), max_tokens=32)
    return answer_to(PROMPT, text)


def emoji() -> str:
    """Stream the tokens of a text."""
    from tiny_llm.generation.generate import TextStream

    _, tokenizer = load_by_name(SHIPPED_MODEL)
    pieces: list[str] = []
    stream = TextStream(tokenizer, pieces.append)
    for token in tokenizer.encode("A café, 30 °C 🙂", add_special_tokens=False):
        stream.add(token)
    stream.finish()
    return f"the model writes  A café, 30 °C 🙂\nthe client gets   {''.join(pieces)}"


def seed() -> str:
    """Ask with a seed, alone and beside a request that has none."""
    from tiny_llm import SamplingParams, batch_generate

    model, tokenizer = load_by_name(SHIPPED_MODEL)
    mine = SamplingParams(temperature=0.8, seed=42, max_tokens=10)
    other = SamplingParams(temperature=0.8, max_tokens=10)
    alone = batch_generate(model, tokenizer, [SHORT], params=mine)
    beside = batch_generate(model, tokenizer, [SHORT, PROMPT], params=[mine, other])
    answers = (alone[0].text, beside[0].text)
    return "\n".join(
        f"seed 42, {where:6} {answer_to(SHORT, text)}"
        for where, text in zip(("alone", "beside"), answers, strict=True)
    )


def zeros() -> str:
    """Quantize a weight with a row of zeros, and multiply by it."""
    from tiny_llm import dequantize_weights, quantize_weights

    weight = mx.array([[0.0] * 64, [i / 64 for i in range(64)]])
    product = mx.ones((1, 64)) @ dequantize_weights(quantize_weights(weight)).T
    first, second = product[0, 0].item(), product[0, 1].item()
    return f"the row of zeros   {first:.1f}\nthe row beside it  {second:.1f}"


def padding() -> str:
    """Ask a short prompt alone, and in a batch with a long one."""
    from tiny_llm import SamplingParams, batch_generate

    model, tokenizer = load_by_name(SHIPPED_MODEL)
    params = SamplingParams(max_tokens=16)
    alone = batch_generate(model, tokenizer, [SHORT], params=params)
    beside = batch_generate(model, tokenizer, [LONG * 5, SHORT], params=params)
    return f"alone     {answer_to(SHORT, alone[0].text)}\nin a batch {answer_to(SHORT, beside[1].text)}"


def chunks() -> str:
    """Ask the same prompt with a large and with a small chunk size."""
    from tiny_llm import SamplingParams, batch_generate

    model, tokenizer = load_by_name(SHIPPED_MODEL)
    lines = []
    for size in (128, 8):
        (result,) = batch_generate(
            model, tokenizer, [LONG], prefill_step=size, params=SamplingParams(max_tokens=16)
        )
        lines.append(f"chunks of {size:3}  … all the world{result.text}")
    return "\n".join(lines)


def router() -> str:
    """Weigh the experts of a token, in a model whose config.json says not to normalize."""
    from tiny_llm import route

    _, weights = route(mx.array([[1.2, 0.9, 0.4, 0.1]]), 2, False)
    first, second = weights[0, 0].item(), weights[0, 1].item()
    return (
        '"norm_topk_prob": false, logits 1.2, 0.9, 0.4, 0.1\n'
        f"weights of the two experts  {first:.2f} and {second:.2f}\ntheir sum  {mx.sum(weights).item():.2f}"
    )


def answer_to(prompt: str, text: str) -> str:
    """A prompt and its answer on one line."""
    return f"{prompt}|{text}".replace("\n", " ")
