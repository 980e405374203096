"""Load a model whose blocks have mixtures of experts: Qwen3-MoE."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from kernel_runtime.checkpoint import read_json, read_tensors

from ..ops.experts import ExpertProjection, ExpertWeights
from .config import ModelConfig
from .given.config_check import COUNTS, SIZE, SWITCH, check_kinds
from .given.operations import PLAIN_OPERATIONS, Operations
from .loader import Quantization, Tensors, build_mlp, build_model
from .moe import SparseMoe
from .qwen3 import Qwen3Model

MODEL_TYPE = "qwen3_moe"
KINDS = {
    "num_experts": SIZE,
    "num_experts_per_tok": SIZE,
    "moe_intermediate_size": SIZE,
    "decoder_sparse_step": SIZE,
    "norm_topk_prob": SWITCH,
    "mlp_only_layers": COUNTS,
}
REQUIRED = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
ONE_EXPERT = re.compile(r"(.*\.mlp)\.experts\.(\d+)\.(\w+)\.(\w+)")


@dataclass(frozen=True)
class MoeConfig:
    """Sizes and switches of the mixtures.

    Attributes:
        num_experts: X
        num_chosen: k, the experts per token.
        hidden_size: I, the width of an expert's hidden layer.
        is_normalized: whether the weights of a token's experts sum to 1.
        sparse_step: every so many layers have experts, the last of them.
        dense_layers: layers that have none, by number.
    """

    num_experts: int
    num_chosen: int
    hidden_size: int
    is_normalized: bool = False
    sparse_step: int = 1
    dense_layers: tuple[int, ...] = ()

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> "MoeConfig":
        """Read the contents of a config.json.

        Raises:
            ValueError: a key is missing, or its value is of the wrong kind; or a token has more experts than
                there are.
        """
        check_kinds(config, KINDS, "")
        for key in REQUIRED:
            if config.get(key) is None:
                raise ValueError(f"config.json does not say {key!r}, which this model needs")
        num_experts, num_chosen, hidden_size = (config[key] for key in REQUIRED)
        if num_chosen > num_experts:
            raise ValueError(
                f"num_experts_per_tok of config.json must be at most num_experts, {num_experts}, "
                f"got {num_chosen}"
            )
        return MoeConfig(
            num_experts,
            num_chosen,
            hidden_size,
            bool(config.get("norm_topk_prob", False)),
            config.get("decoder_sparse_step") or 1,
            tuple(config.get("mlp_only_layers") or ()),
        )

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        return layer not in self.dense_layers and (layer + 1) % self.sparse_step == 0


def load_moe_model(
    path: Path, dtype: mx.Dtype | None = None, operations: Operations = PLAIN_OPERATIONS
) -> Qwen3Model:
    """The model of a checkpoint folder of type `qwen3_moe`; arguments and errors as for `load_model`."""
    config_dict = read_json(path / "config.json")
    moe = MoeConfig.from_dict(config_dict)
    config = ModelConfig.from_dict({**config_dict, "model_type": "qwen3"})
    quantization = Quantization.from_config(config_dict)
    tensors = Tensors(flatten_experts(read_tensors(path)), quantization, dtype, operations)
    model = build_model(config, tensors, partial(build_moe, moe))
    tensors.check_all_used(model.head == model.embedding.as_linear)
    return model


def flatten_experts(tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Store the weights of all experts below each other, in one matrix per projection: [X x out, in].

    mlx-lm keeps them as [X, out, in], under `switch_mlp`; Qwen's own checkpoints have a matrix per expert.
    """
    flat, parts = dict[str, mx.array](), dict[str, dict[int, mx.array]]()
    for name, tensor in tensors.items():
        if match := ONE_EXPERT.fullmatch(name):
            block, number, projection, part = match.groups()
            parts.setdefault(f"{block}.switch_mlp.{projection}.{part}", {})[int(number)] = tensor
        elif ".mlp.switch_mlp." in name:
            flat[name] = tensor.reshape(-1, tensor.shape[-1])
        else:
            flat[name] = tensor
    joined = {name: mx.concatenate([each[i] for i in sorted(each)]) for name, each in parts.items()}
    return flat | joined


def build_moe(
    moe: MoeConfig, config: ModelConfig, tensors: Tensors, name: str
) -> Callable[[mx.array], mx.array]:
    """The mixture whose tensors start with `name`, model.layers.i.mlp; an MLP in layers without experts."""
    if not moe.is_sparse(int(name.split(".")[2])):
        return build_mlp(config, tensors, name)
    E, hidden = config.hidden_size, moe.hidden_size
    experts = f"{name}.switch_mlp"
    return SparseMoe(
        router=tensors.take_projection(f"{name}.gate", moe.num_experts, E, bias=False),
        gate=take_experts(tensors, f"{experts}.gate_proj", moe.num_experts, hidden, E),
        up=take_experts(tensors, f"{experts}.up_proj", moe.num_experts, hidden, E),
        down=take_experts(tensors, f"{experts}.down_proj", moe.num_experts, E, hidden),
        num_chosen=moe.num_chosen,
        is_normalized=moe.is_normalized,
    )


def take_experts(
    tensors: Tensors, layer: str, num_experts: int, num_outputs: int, num_inputs: int
) -> ExpertProjection:
    """The product of rows with the weights of their experts, packed or not."""
    shape = num_experts * num_outputs, num_inputs
    if f"{layer}.scales" in tensors:
        packed = ExpertWeights(tensors.take_packed(layer, *shape), num_experts)
        return lambda x, experts: tensors.operations.grouped_matmul(x, experts, packed)
    plain = tensors.take(f"{layer}.weight", *shape).reshape(num_experts, num_outputs, num_inputs)
    return lambda x, experts: mx.gather_mm(
        x[:, None], plain.swapaxes(1, 2), rhs_indices=experts, sorted_indices=True
    )[:, 0]
