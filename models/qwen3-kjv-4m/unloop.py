"""Teach the model not to repeat itself, by unlikelihood training on its own greedy text.

A small model that always takes the most likely token soon repeats a phrase without end. Here the model goes
on greedily from many openings, every token of a repeated run of four tokens is marked, and the loss adds
-log(1 - p) for the marked tokens to the ordinary loss (Welleck et al., "Neural Text Generation with
Unlikelihood Training", 2019).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from corpus import plain_document
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from train import Attention, DocumentSampler, Qwen3

OPENINGS_PER_STEP = 32
GREEDY_TOKENS = 64
LONGEST_OPENING = 200
RUN = 4
STOP_IDS = (0, 2)
REPLY_START = "<|im_start|>assistant\n"


def attend_cached(
    layer: Attention, x: Tensor, cos: Tensor, sin: Tensor, cache: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run an attention layer on new positions, with the keys and values of the earlier ones."""
    q, k, v = layer.project(x, cos, sin)
    if cache is not None:
        k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
    return layer.mix(q, k, v, causal=cache is None), (k, v)


def pick(logits: Tensor, temperature: float) -> Tensor:
    """Return the likeliest token of each row, or a token drawn at the temperature, of shape (rows, 1)."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial(torch.softmax(logits.float() / temperature, -1), 1)


@torch.no_grad()
def go_on(model: Qwen3, prompts: Tensor, count: int, temperature: float = 0.0) -> Tensor:
    """Return the prompts, all of one length, with `count` tokens of the model's own after each."""
    ids, new = prompts, prompts
    caches: list[tuple[Tensor, Tensor] | None] = [None] * len(model.model.layers)
    for _ in range(count):
        start = ids.shape[1] - new.shape[1]
        cos, sin = model.cos[start : ids.shape[1]], model.sin[start : ids.shape[1]]
        x = model.model.embed_tokens(new)
        for i, layer in enumerate(model.model.layers):
            mixed, caches[i] = attend_cached(layer.self_attn, layer.input_layernorm(x), cos, sin, caches[i])
            x = x + mixed
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        new = pick(model.logits(x[:, -1]), temperature)
        ids = torch.cat([ids, new], dim=1)
    return ids


def repeated(tokens: list[int]) -> list[bool]:
    """Mark every token of a run that has occurred before, and of a token that stands three times in a row."""
    marks = [False] * len(tokens)
    seen: set[tuple[int, ...]] = set()
    for end in range(1, len(tokens) + 1):
        if tokens[end - 1] in STOP_IDS:
            break
        run = tuple(tokens[max(0, end - RUN) : end])
        if len(run) == RUN and run in seen:
            marks[end - RUN : end] = [True] * RUN
        seen.add(run)
        if end >= 3 and len(set(tokens[end - 3 : end])) == 1:
            marks[end - 1] = True
    return marks


def draw_plain_openings(documents: DocumentSampler, tokenizer: Tokenizer) -> Tensor:
    """Draw the first few tokens of verses, the same number of each."""
    length = documents.random.randint(2, 20)
    rows: list[list[int]] = []
    while len(rows) < OPENINGS_PER_STEP:
        verses = documents.draw_chapter().verses
        start = documents.random.randrange(len(verses))
        ids = tokenizer.encode(plain_document(verses[start : start + 2])).ids[:length]
        if len(ids) == length:
            rows.append(ids)
    return torch.tensor(rows)


def draw_chat_openings(documents: DocumentSampler, tokenizer: Tokenizer) -> Tensor:
    """Draw chat prompts up to the start of the reply; a batch holds prompts of one length."""
    buckets: dict[int, list[list[int]]] = defaultdict(list)
    while True:
        text = documents.draw_chat()
        ids = tokenizer.encode(text[: text.index(REPLY_START) + len(REPLY_START)]).ids
        if len(ids) > LONGEST_OPENING:
            continue
        bucket = buckets[len(ids)]
        bucket.append(ids)
        if len(bucket) == OPENINGS_PER_STEP:
            return torch.tensor(bucket)


def unlikelihood(model: Qwen3, prompts: Tensor) -> tuple[Tensor, float]:
    """Return the loss on repeated tokens of the greedy text, and the share of greedy texts that repeat."""
    model.eval()
    ids = go_on(model, prompts, GREEDY_TOKENS)
    model.train()
    begin = prompts.shape[1]
    marks = torch.tensor([repeated(row) for row in ids[:, begin:].tolist()])
    share = marks.any(1).float().mean().item()
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.hidden(ids[:, :-1])[:, begin - 1 :]
        logits = model.logits(hidden[marks])
    chosen = functional.log_softmax(logits.float(), -1).gather(1, ids[:, begin:][marks][:, None])
    penalty = -torch.log((1 - chosen.exp()).clamp(min=1e-4))
    return penalty.sum() / max(1, len(penalty)), share
