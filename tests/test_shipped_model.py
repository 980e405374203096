"""The checkpoint that ships: its traits, its size, how it reads, and that mlx-lm says the same."""

import json
import re

import mlx.core as mx
import pytest

from scripts.checkpoints import SHIPPED_MODEL, resolve_checkpoint
from scripts.compare_mlx_lm import differing_prompts
from tiny_llm import Qwen3Model, SamplingParams, batch_generate, load

FOLDER = resolve_checkpoint(SHIPPED_MODEL)
CONFIG = json.loads((FOLDER / "config.json").read_text())
OPENINGS = (
    "In the beginning",
    "And it came to pass",
    "Blessed are",
    "And the LORD spake unto Moses",
    "My son,",
    "Then Jesus said unto them",
    "Now the sons of",
    "The burden of",
    "Behold,",
    "And David said",
)


@pytest.fixture(scope="module")
def loaded() -> tuple[Qwen3Model, object]:
    return load(FOLDER, mx.float32)


def test_it_has_every_trait_of_qwen3() -> None:
    assert CONFIG["model_type"] == "qwen3"
    assert CONFIG["num_key_value_heads"] < CONFIG["num_attention_heads"]
    assert CONFIG["head_dim"] != CONFIG["hidden_size"] / CONFIG["num_attention_heads"]
    assert CONFIG["tie_word_embeddings"] is True


def test_it_is_small() -> None:
    names = ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json")
    assert sum((FOLDER / name).stat().st_size for name in names) <= 6_000_000


def test_its_greedy_answers_are_mlx_lms() -> None:
    assert differing_prompts(SHIPPED_MODEL, max_tokens=24) == []


def test_sampled_words_occur_in_the_corpus(loaded) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = loaded
    corpus = set((FOLDER / "words.txt").read_text(encoding="utf-8").split())
    params = [SamplingParams(temp=0.8, seed=seed, max_tokens=120) for seed in range(30)]
    prompts = [OPENINGS[seed % len(OPENINGS)] for seed in range(30)]
    results = batch_generate(model, tokenizer, prompts, batch_size=15, params=params)
    # The last word of an answer may be cut off by max_tokens.
    texts = [result.text.rsplit(maxsplit=1)[0] for result in results]
    words = [word for text in texts for word in re.findall(r"[a-z]+", text.lower())]
    assert len(words) >= 2000
    known = sum(word in corpus for word in words[:2000])
    assert known / 2000 >= 0.97


def test_greedy_continuations_do_not_loop(loaded) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = loaded
    results = batch_generate(model, tokenizer, OPENINGS, batch_size=10, params=SamplingParams(max_tokens=40))
    assert sum(not loops(result.token_ids) for result in results) >= 8


def loops(tokens: tuple[int, ...]) -> bool:
    """Whether some run of tokens comes three times in a row, or one of eight tokens comes twice."""
    for size in range(1, len(tokens) // 3 + 1):
        for start in range(len(tokens) - 3 * size + 1):
            run = tokens[start : start + size]
            if tokens[start + size : start + 3 * size] == run * 2:
                return True
    runs = [tokens[start : start + 8] for start in range(len(tokens) - 7)]
    return len(set(runs)) < len(runs)
