"""A config.json as transformers writes it, of families that the loader knows and of others."""

import json
from typing import Any

import pytest

from tiny_llm.model.registry import check_loadable

LOADED: list[tuple[str, dict[str, Any]]] = [
    ("LlamaConfig", {}),
    ("LlamaConfig", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    ("Qwen2Config", {}),
    ("Qwen3Config", {}),
    ("Qwen3MoeConfig", {"num_experts": 6, "num_experts_per_tok": 2}),
    ("MistralConfig", {"sliding_window": None}),
]
REFUSED = [
    ("MistralConfig", {}, "sliding_window"),
    ("Qwen2Config", {"use_sliding_window": True, "max_window_layers": 1}, "layer_types"),
    ("Qwen2MoeConfig", {}, "model_type 'qwen2_moe'"),
    ("Gemma3Config", {}, "model_type 'gemma3'"),
    ("Qwen3VLConfig", {}, "model_type 'qwen3_vl'"),
    ("Mistral3Config", {}, "model_type 'mistral3'"),
]


def written(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    import transformers  # a second: only when needed

    config: dict[str, Any] = json.loads(getattr(transformers, name)(**changes).to_json_string())
    return config


@pytest.mark.parametrize(("name", "changes"), LOADED)
def test_families_that_load(name: str, changes: dict[str, Any]) -> None:
    check_loadable(written(name, changes))


@pytest.mark.parametrize(("name", "changes", "reason"), REFUSED)
def test_families_that_do_not_load_are_named(name: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_loadable(written(name, changes))
