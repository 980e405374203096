"""What the figures recorded is what the shipped checkpoint says."""

import json

import mlx.core as mx
import numpy as np

from scripts.author.record_figures import COMMAND, SHAPES
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.checkpoints.models import load_by_name
from tests.book.figure_pages import VIZ
from tiny_llm.generation.generate import encode_prompt, to_logprobs


def recorded(name: str) -> dict:
    """The data of a figure, as its classic script holds them."""
    comment, _, line = (VIZ / "data" / f"{name}.js").read_text(encoding="utf-8").splitlines()
    data = json.loads(line.partition(" = ")[2].removesuffix(";"))
    assert comment == f"// Made by `{COMMAND}` on {data['machine']}."
    return data


def test_log_probabilities_are_those_of_the_shipped_model() -> None:
    data = recorded("sampler")
    model, tokenizer = load_by_name(SHIPPED_MODEL)
    assert data["tokens"] == [tokenizer.decode([token]) for token in range(model.config.vocab_size)]
    for prompt in data["prompts"]:
        logits = model(mx.array([encode_prompt(tokenizer, prompt["text"])]), logits_to_keep=1)
        found, expected = np.array(prompt["logprobs"]), np.array(to_logprobs(logits)[0].tolist())
        np.testing.assert_allclose(found, expected, atol=0.1)  # kernels differ in the unlikely ones
        np.testing.assert_allclose(np.exp(found), np.exp(expected), atol=2e-3)


def test_shape_is_that_of_the_shipped_model() -> None:
    config = json.loads((resolve_checkpoint(SHIPPED_MODEL) / "config.json").read_text(encoding="utf-8"))
    data = recorded("roofline")
    assert data["models"][SHIPPED_MODEL] == {SHAPES[name]: config[name] for name in SHAPES} | {"qkNorm": True}
    assert config["tie_word_embeddings"]
    assert min(data["bandwidth"], data["peak"]) > 0
