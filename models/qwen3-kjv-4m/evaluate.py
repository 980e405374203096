"""Measure the exported checkpoint with mlx-lm: validation loss, known words and loops.

1. Validation loss: the mean loss in nats for each token of the held-out chapters. The stored 8-bit weights
   are expanded to float32 for this measurement, which is many times faster on a CPU.
2. Known words: 2,000 words sampled at temperature 0.8 (no top-p, no top-k), a tenth of them from each of ten
   openings; the share of them that words.txt holds.
3. Loops: the greedy continuation of each opening, 40 tokens long. It counts as a loop if a sequence of one or
   more tokens stands three or more times in immediate succession, or if any six tokens in a row occur twice.
4. Ends of turn: replies to the prompts of demo_prompts.json, greedy, that end by themselves within 64 tokens.

The openings were written down before the first measurement.

    python evaluate.py .
    python evaluate.py . --compare ../build/float32
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from corpus import cut_rows, plain_document, read_chapters, split_chapters, words_of
from mlx_lm import load, stream_generate
from mlx_lm.sample_utils import make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import dequantize_model

OPENINGS = [
    "In the beginning",
    "And it came to pass in those days, that",
    "The LORD is my shepherd;",
    "Blessed are they that",
    "And Moses said unto the people,",
    "My son, hear the",
    "And Jesus answered and said unto them,",
    "Now in the third year of the reign of",
    "Behold, I will send",
    "For the love of",
]
ROW_LENGTH = 1024
LOOP_TOKENS = 40
REPLY_TOKENS = 64


def validation_loss(folder: Path) -> float:
    """Return the mean loss for each token of the held-out chapters, computed in float32."""
    model, tokenizer = load(str(folder))
    model.set_dtype(mx.float32)
    model = dequantize_model(model)
    total, count = 0.0, 0
    for chapter in split_chapters(read_chapters())[1]:
        for row in cut_rows(tokenizer.encode(plain_document(chapter.verses), verbose=False), ROW_LENGTH):
            logits = model(mx.array([row[:-1]])).astype(mx.float32)
            total += nn.losses.cross_entropy(logits, mx.array([row[1:]]), reduction="sum").item()
            count += len(row) - 1
    return total / count


def generate(
    model: nn.Module, tokenizer: TokenizerWrapper, prompt: str | list[int], tokens: int, temperature: float
) -> tuple[str, list[int], str | None]:
    """Return the text, the tokens and the finish reason of one continuation."""
    text, ids, reason = "", [], None
    sampler = make_sampler(temp=temperature)
    for response in stream_generate(model, tokenizer, prompt, max_tokens=tokens, sampler=sampler):
        text += response.text
        ids.append(response.token)
        reason = response.finish_reason
    return text, ids, reason


def sample_words(model: nn.Module, tokenizer: TokenizerWrapper, opening: str, count: int) -> list[str]:
    """Sample continuations of an opening until they hold enough words, less a last word that was cut off."""
    words: list[str] = []
    while len(words) < count:
        text, _, reason = generate(model, tokenizer, opening, 300, 0.8)
        if reason == "length":
            text = text[: max(text.rfind(" "), text.rfind("\n"))]
        words += words_of(opening + text)[len(words_of(opening)) :]
    return words[:count]


def loops(ids: list[int]) -> bool:
    """Tell whether a continuation repeats itself, as the module's description says."""
    for size in range(1, len(ids) // 3 + 1):
        for start in range(len(ids) - 3 * size + 1):
            piece = ids[start : start + size]
            if ids[start + size : start + 3 * size] == piece + piece:
                return True
    sixes = [tuple(ids[i : i + 6]) for i in range(len(ids) - 5)]
    return len(set(sixes)) < len(sixes)


def report_words(model: nn.Module, tokenizer: TokenizerWrapper, known: set[str], count: int) -> None:
    """Print the share of sampled words that the text holds."""
    mx.random.seed(0)
    words = [
        w for opening in OPENINGS for w in sample_words(model, tokenizer, opening, count // len(OPENINGS))
    ]
    unknown = [word for word in words if word not in known]
    print(f"known words: {len(words) - len(unknown)} of {len(words)}, {1 - len(unknown) / len(words):.2%}")
    print(f"  unknown: {', '.join(unknown)}")


def report_loops(model: nn.Module, tokenizer: TokenizerWrapper) -> None:
    """Print the greedy continuations and how many of them do not loop."""
    free = 0
    for opening in OPENINGS:
        text, ids, _ = generate(model, tokenizer, opening, LOOP_TOKENS, 0.0)
        looped = loops(ids)
        free += not looped
        print(f"  {'loop' if looped else 'free'} {len(ids):3d} tokens: {opening}|{text!r}")
    print(f"free of loops: {free} of {len(OPENINGS)}")


def report_replies(model: nn.Module, tokenizer: TokenizerWrapper, prompts: list[str]) -> None:
    """Print the greedy replies to the demonstration prompts and how they end."""
    ended = 0
    for prompt in prompts:
        ids = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
        text, tokens, reason = generate(model, tokenizer, ids, REPLY_TOKENS, 0.0)
        ended += reason == "stop"
        print(f"  prompt {len(ids):4d} tokens, reply {len(tokens):3d}, {reason}: {text!r}")
    print(f"replies that end by themselves within {REPLY_TOKENS} tokens: {ended} of {len(prompts)}")


def main() -> None:
    """Load the checkpoint and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="folder of the exported checkpoint")
    parser.add_argument("--compare", type=Path, help="folder of the same model in float32, for its loss")
    parser.add_argument("--words", type=int, default=2000, help="how many words to sample")
    args = parser.parse_args()

    for folder in filter(None, (args.model, args.compare)):
        print(f"validation loss, {folder}: {validation_loss(folder):.4f}", flush=True)
    model, tokenizer = load(str(args.model))
    known = set((args.model / "words.txt").read_text(encoding="utf-8").split())
    report_words(model, tokenizer, known, args.words)
    report_loops(model, tokenizer)
    prompts = args.model / "demo_prompts.json"
    if prompts.exists():
        report_replies(model, tokenizer, json.loads(prompts.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
