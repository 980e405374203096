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
from .config_check import COUNTS, SIZE, SWITCH, check_kinds
from .loader import Quantization, Tensors, build_mlp, build_model
from .moe import SparseMoe
from .operations import PLAIN_OPERATIONS, Operations
from .qwen3 import Qwen3Model

KINDS = {
    "num_experts": SIZE,
    "num_local_experts": SIZE,
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
        sparse_step: of every so many layers the last one has experts.
        dense_layers: numbers of layers, from 0, that have an MLP instead.
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

        The keys, in the order of the attributes: num_experts, num_experts_per_tok and moe_intermediate_size,
        which are `REQUIRED`; norm_topk_prob, decoder_sparse_step and mlp_only_layers, which may be missing.
        Newer files have num_local_experts instead of num_experts. Null counts as missing.

        Raises:
            ValueError: a required `key` is missing, or `check_kinds` refuses the value of a `key` of `KINDS`;
                or `num_experts_per_tok` is more than `num_experts`.
        """
        check_kinds(config, KINDS, "")
        config = {**config, "num_experts": config.get("num_experts") or config.get("num_local_experts")}
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
        """Whether a layer has experts instead of an MLP.

        Args:
            layer: its number, from 0. With a `sparse_step` of 2, these are layers 1, 3, 5 and so on.
        """
        return layer not in self.dense_layers and (layer + 1) % self.sparse_step == 0


def load_moe_model(
    path: Path, dtype: mx.Dtype | None = None, operations: Operations = PLAIN_OPERATIONS
) -> Qwen3Model:
    """The model of a checkpoint folder of type `qwen3_moe`.

    Except for the mixtures it is a Qwen3, so that `ModelConfig` reads its config.json as that of a `qwen3`.

    Args:
        path, dtype, operations: as for `load_model`.

    Raises:
        ValueError: as for `load_model` and `MoeConfig`; shows the `name` of the file, tensor or layer. No
            tensor may be left over.
    """
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

    The matrix has mlx-lm's name, such as `model.layers.0.mlp.switch_mlp.up_proj.weight`. Checkpoints have one
    of two layouts. In mlx-lm's, the tensor of this name is [X, out, in]. In Qwen's own, each expert has a
    tensor [out, in], that of expert 7 named `model.layers.0.mlp.experts.7.up_proj.weight`; `ONE_EXPERT`
    matches such names. Store the `scales` and `biases` of packed weights in the same way.

    Args:
        tensors: arrays by their names in the checkpoint, in either layout. Others stay as they are.

    Returns:
        a new dict.
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
    """The mixture of a layer, or its MLP if the layer has no experts.

    The router is the projection `gate` without a bias; the experts' projections are `switch_mlp.gate_proj`,
    `switch_mlp.up_proj` and `switch_mlp.down_proj`.

    Args:
        moe, config: of the model.
        tensors: as `flatten_experts` returns them.
        name: what the tensors' names start with, such as model.layers.3.mlp for layer 3.

    Raises:
        ValueError: as for `Tensors`; shows the `name` of the tensor or `layer`.
    """
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
    """The product of rows with the weights of their experts.

    Packed weights stay packed, for `tensors.operations.grouped_matmul`, even if there is no
    `tensors.operations.matmul` and other projections are expanded. Plain weights are multiplied by
    `mx.gather_mm`, which takes [R, 1, in] and [X, in, out], and the number of a matrix for each row.

    Args:
        tensors: as `flatten_experts` returns them.
        layer: name of the projection, without .weight.
        num_experts, num_outputs, num_inputs: X, out and in.

    Raises:
        ValueError: as for `Tensors`; shows the `name` of the tensor or `layer`.
    """
    shape = num_experts * num_outputs, num_inputs
    if f"{layer}.scales" in tensors:
        packed = ExpertWeights(tensors.take_packed(layer, *shape), num_experts)
        return lambda x, experts: tensors.operations.grouped_matmul(x, experts, packed)
    plain = tensors.take(f"{layer}.weight", *shape).reshape(num_experts, num_outputs, num_inputs)
    return lambda x, experts: mx.gather_mm(
        x[:, None], plain.swapaxes(1, 2), rhs_indices=experts, sorted_indices=True
    )[:, 0]
