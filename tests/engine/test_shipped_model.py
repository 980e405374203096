"""The checkpoints that ship: their traits, their sizes, how they read, and that mlx-lm says the same."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from scripts.checkpoints.compare_mlx_lm import differing_prompts
from scripts.checkpoints.files import (
    DRAFT_MODEL,
    MOE_MODEL,
    SHIPPED_MODEL,
    SHIPPED_MODELS,
    resolve_checkpoint,
)
from tests.support.check import check_close
from tiny_llm import Qwen3Model, SamplingParams, batch_generate, load

FOLDER = resolve_checkpoint(SHIPPED_MODEL)
DRAFT = resolve_checkpoint(DRAFT_MODEL)
MOE = resolve_checkpoint(MOE_MODEL)
FILES = ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json")
sys.path.insert(0, str(FOLDER))
evaluate = importlib.import_module("evaluate")  # its openings were written down before it was first run
corpus = importlib.import_module("corpus")


@pytest.fixture
def loaded(on_cpu: None) -> tuple[Qwen3Model, object]:
    """What the checkpoint writes is judged where thousands of tokens are quick on every machine."""
    return load(FOLDER, mx.float32)


@pytest.mark.parametrize("name", SHIPPED_MODELS)
def test_it_is_a_qwen3_of_grouped_heads_and_tied_embeddings(name: str) -> None:
    config = read_config(name)
    assert config["model_type"] == ("qwen3_moe" if name == MOE_MODEL else "qwen3")
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert config["tie_word_embeddings"] is True


def test_its_head_dim_does_not_follow_from_the_hidden_size() -> None:
    config = read_config(SHIPPED_MODEL)
    assert config["head_dim"] != config["hidden_size"] / config["num_attention_heads"]


def read_config(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((resolve_checkpoint(name) / "config.json").read_text())
    return config


def test_they_are_small() -> None:
    assert sum((FOLDER / name).stat().st_size for name in FILES) <= 6_000_000
    assert folder_size(DRAFT) <= 1_500_000
    assert folder_size(MOE) <= 3_000_000


def folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


@pytest.mark.parametrize("name", SHIPPED_MODELS)
@pytest.mark.parametrize(("max_tokens", "num_prompts"), [(3, 1), (24, None)], ids=["a few", "all"])
def test_its_greedy_answers_are_mlx_lms(name: str, max_tokens: int, num_prompts: int | None) -> None:
    assert differing_prompts(name, max_tokens, num_prompts) == []


@pytest.mark.parametrize("name", SHIPPED_MODELS)
def test_its_logits_are_mlx_lms(name: str, on_cpu: None) -> None:
    from mlx_lm.utils import load_model  # late: it takes a second

    tokens = mx.array([[5, 300, 17, 4000, 9]])
    expected = load_model(resolve_checkpoint(name))[0](tokens)
    check_close(load(resolve_checkpoint(name), mx.float32)[0](tokens), expected, f"logits of {name}", 1e-3)


@pytest.mark.parametrize("name", SHIPPED_MODELS[1:])
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "demo_prompts.json"])
def test_they_share_tokens_and_prompts(name: str, file: str) -> None:
    assert (resolve_checkpoint(name) / file).read_bytes() == (FOLDER / file).read_bytes()


def test_the_draft_model_often_predicts_its_targets_token(loaded) -> None:  # type: ignore[no-untyped-def]
    target, tokenizer = loaded
    draft, _ = load(DRAFT, mx.float32)
    params = SamplingParams(max_tokens=evaluate.LOOP_TOKENS)
    correct = []
    for result in batch_generate(target, tokenizer, evaluate.OPENINGS, batch_size=10, params=params):
        prompt = tokenizer.encode(evaluate.OPENINGS[result.prompt_idx])
        tokens = mx.array([*prompt, *result.token_ids])
        predicted = mx.argmax(draft(tokens[None, :-1])[0, len(prompt) - 1 :], axis=-1)
        correct += (predicted == tokens[len(prompt) :]).tolist()
    assert sum(correct) / len(correct) >= 0.5


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
