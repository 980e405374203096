"""The checkpoint that ships: its traits, its size, how it reads, and that mlx-lm says the same."""

import importlib
import json
import sys

import mlx.core as mx
import pytest

from scripts.checkpoints.compare_mlx_lm import differing_prompts
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from tiny_llm import Qwen3Model, SamplingParams, batch_generate, load

FOLDER = resolve_checkpoint(SHIPPED_MODEL)
CONFIG = json.loads((FOLDER / "config.json").read_text())
sys.path.insert(0, str(FOLDER))
evaluate = importlib.import_module("evaluate")  # its openings were written down before it was first run
corpus = importlib.import_module("corpus")


@pytest.fixture
def loaded(on_cpu: None) -> tuple[Qwen3Model, object]:
    """What the checkpoint writes is judged where thousands of tokens are quick on every machine."""
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
    known = set((FOLDER / "words.txt").read_text(encoding="utf-8").split())
    prompts = [opening for opening in evaluate.OPENINGS for _ in range(4)]
    params = [SamplingParams(temperature=0.8, seed=seed, max_tokens=120) for seed in range(len(prompts))]
    results = batch_generate(model, tokenizer, prompts, batch_size=20, params=params)
    words = [word for result in results for word in corpus.words_of(whole_words(result.text))]
    assert len(words) >= 2000
    assert sum(word in known for word in words[:2000]) / 2000 >= 0.97


def whole_words(text: str) -> str:
    """Without the last word, which max_tokens may have cut off."""
    return " ".join(text.split()[:-1])


def test_greedy_continuations_do_not_loop(loaded) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = loaded
    params = SamplingParams(max_tokens=evaluate.LOOP_TOKENS)
    results = batch_generate(model, tokenizer, evaluate.OPENINGS, batch_size=10, params=params)
    assert sum(not evaluate.loops(list(result.token_ids)) for result in results) >= 8
