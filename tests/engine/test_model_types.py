"""A model type is one file of its own and one row of the registry: here are two, and nothing else knows."""

import ast
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from accelerated.pretrained import load_part
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.course import ROOT
from scripts.sources.files import source_files
from tests.support.check import check_close
from tests.support.checkpoints import MOE, Variant, build, save
from tests.support.ranks import on_ranks
from tiny_llm import ModelConfig, MoeConfig, load
from tiny_llm.model.loader import Tensors, build_mlp
from tiny_llm.model.moe_loader import build_moe
from tiny_llm.model.registry import MODEL_TYPES, ModelType, check_loadable, find_model_type, read_as
from tiny_llm.model.sharded_loader import ShardedTensors, build_sharded_moe

SIZES = {"num_attention_heads": 4, "head_dim": None, "rope_theta": 1000000.0}
TOKENS = [[5, 9, 100, 7, 7, 81]]
Arrays = dict[str, mx.array]
Mlp = Callable[[mx.array], mx.array]


# --- a dense type: Phi-3, a Llama with fused projections ---


def split_fused(arrays: Arrays, config: Any) -> Arrays:
    """Give the fused projections of q, k and v, and of gate and up, a tensor each."""
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    end_of_q = config["num_attention_heads"] * head_dim
    end_of_k = end_of_q + config["num_key_value_heads"] * head_dim
    fused = {
        "qkv_proj": (("q_proj", "k_proj", "v_proj"), [end_of_q, end_of_k]),
        "gate_up_proj": (("gate_proj", "up_proj"), [config["intermediate_size"]]),
    }
    renamed: Arrays = {}
    for name, array in arrays.items():
        layer = name.split(".")[-2]
        projections, ends = fused.get(layer, ((layer,), []))
        for projection, part in zip(projections, mx.split(array, ends), strict=True):
            renamed[name.replace(f".{layer}.", f".{projection}.")] = part
    return renamed


PHI3 = ModelType(read_config=partial(read_as, "llama"), rename=split_fused)


# --- one with experts: Qwen2-MoE, where each token also goes through an expert that all share ---


@dataclass(frozen=True)
class SharingConfig(MoeConfig):
    """Sizes of mixtures with a shared expert."""

    shared_size: int = 0


def read_experts(config: Any) -> MoeConfig:
    return SharingConfig(
        **vars(MoeConfig.from_dict(config)), shared_size=config["shared_expert_intermediate_size"]
    )


def with_shared(moe: MoeConfig, config: ModelConfig, tensors: Tensors, name: str, routed: Mlp) -> Mlp:
    assert isinstance(moe, SharingConfig)
    size = moe.shared_size // (tensors.ranks.size if isinstance(tensors, ShardedTensors) else 1)
    shared = build_mlp(replace(config, intermediate_size=size), tensors, f"{name}.shared_expert")
    gate = tensors.take_projection(f"{name}.shared_expert_gate", 1, config.hidden_size, bias=False)
    return lambda x: routed(x) + mx.sigmoid(gate(x)) * shared(x)


def build_whole(moe: MoeConfig, config: ModelConfig, tensors: Tensors, name: str) -> Mlp:
    return with_shared(moe, config, tensors, name, build_moe(moe, config, tensors, name))


def build_part(moe: MoeConfig, config: ModelConfig, tensors: ShardedTensors, name: str) -> Mlp:
    return with_shared(moe, config, tensors, name, build_sharded_moe(moe, config, tensors, name))


QWEN2_MOE = ModelType(
    partial(read_as, "qwen2"), lambda arrays, _: arrays, read_experts, build_whole, build_part
)

NEW = {"phi3": PHI3, "qwen2_moe": QWEN2_MOE}
SHARING = {**SIZES, **MOE, "num_experts": 5, "shared_expert_intermediate_size": 64}
SHARING |= {"norm_topk_prob": False, "tie_word_embeddings": False}  # as mlx-lm reads every Qwen2-MoE
VARIANTS = [
    Variant("phi3", "phi3", SIZES),
    Variant("phi3-4bit", "phi3", SIZES, quantization={"group_size": 32, "bits": 4}),
    Variant("qwen2-moe", "qwen2_moe", SHARING),
    Variant("qwen2-moe-4bit", "qwen2_moe", SHARING, quantization={"group_size": 32, "bits": 4}),
]


@pytest.fixture(params=VARIANTS, ids=lambda variant: variant.name)
def new(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, mx.array]:
    """A checkpoint of a type that has got its row, and mlx-lm's logits."""
    variant: Variant = request.param
    monkeypatch.setitem(MODEL_TYPES, variant.family, NEW[variant.family])
    oracle = build(variant)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(resolve_checkpoint(SHIPPED_MODEL) / name, tmp_path)
    return save(variant, oracle, tmp_path), oracle(mx.array(TOKENS))


def test_a_new_type_is_loaded_by_its_row(new: tuple[Path, mx.array], on_cpu: None) -> None:
    folder, expected = new
    model, _ = load(folder, mx.float32)
    check_close(model(mx.array(TOKENS)), expected, "logits", 1e-3)


def test_ranks_share_a_new_type(new: tuple[Path, mx.array], on_cpu: None) -> None:
    folder, expected = new
    parts = on_ranks(2, lambda ranks: np.array(load_part(folder, ranks, mx.float32)(mx.array(TOKENS))))
    for logits in parts:
        check_close(mx.array(logits), expected, "logits", 1e-3)


@pytest.mark.parametrize("variant", VARIANTS[::2], ids=lambda variant: variant.name)
def test_without_its_row_it_is_refused(variant: Variant) -> None:
    with pytest.raises(ValueError, match=f"model_type '{variant.family}' is not supported: .* qwen3_moe$"):
        check_loadable(variant.config)


@pytest.mark.parametrize("config", [{}, {"model_type": None}, {"model_type": ["llama"]}], ids=str)
def test_a_row_is_found_by_a_name_only(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="model_type"):
        find_model_type(config)


# --- the registry is the only place that knows one type from another ---

MAY_COMPARE = {
    "tiny_llm_ref/model/config.py",  # the switches of the four dense types, which day 1.5 asks for
    "tiny_llm_ref/model/plain_checkpoint.py",  # reads for a loader of one type only
}


def comparisons(source: str) -> Iterator[int]:
    """The lines that decide by a model_type: compare it, match it, or look it up in a table."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare():
                parts: list[ast.AST] = [node.left, *node.comparators]
            case ast.Match(subject=part):
                parts = [part]
            case ast.Subscript(slice=part) if not isinstance(part, ast.Constant):
                parts = [part]
            case ast.Call(func=ast.Attribute(value=part, attr="startswith" | "endswith")):
                parts = [part]
            case ast.Call(func=ast.Attribute(attr="get"), args=[part, *_]) if not isinstance(
                part, ast.Constant
            ):
                parts = [part]
            case _:
                continue
        if any("model_type" in ast.unparse(part).lower() for part in parts):
            yield node.lineno


@pytest.mark.parametrize(
    "line",
    [
        'config["model_type"] == "qwen3"',
        'config.get("model_type") != MODEL_TYPE',
        'model.config.model_type in ("llama", "mistral")',
        'config["model_type"].startswith("qwen")',
        'FORMATS[config["model_type"]]',
        "FORMATS.get(model_type)",
        "match model_type:\n    case _: pass",
    ],
)
def test_a_decision_by_model_type_is_seen(line: str) -> None:
    assert list(comparisons(line)) == [1]


def test_reading_a_model_type_is_no_decision() -> None:
    assert not list(comparisons('{"model_type": "llama"}\nconfig["model_type"]\nconfig.get("model_type")'))


def test_no_caller_tells_model_types_apart() -> None:
    """A new type needs its file and its row, so nothing else may ask for one type by its name."""
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{line}"
        for folder in sorted(ROOT.glob("[a-z]*/"))
        if folder.name not in ("tests", "tiny_llm")  # the latter is rendered from the reference
        for path in source_files(folder)
        if path.suffix == ".py"
        for line in comparisons(path.read_text(encoding="utf-8"))
    }
    registry = "tiny_llm_ref/model/registry.py"
    assert {place for place in found if place.split(":")[0] not in {*MAY_COMPARE, registry}} == set()
    assert {place.split(":")[0] for place in found} == {*MAY_COMPARE, registry}, (
        "a file that needs no exception"
    )
