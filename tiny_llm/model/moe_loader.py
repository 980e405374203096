"""Load a model whose blocks have mixtures of experts: Qwen3-MoE."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..ops.experts import ExpertProjection
from .config import ModelConfig
from .config_check import COUNTS, SIZE, SWITCH
from .loader import Tensors
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
        raise NotImplementedError("week 4 day 2 task 4: MoeConfig.from_dict is not written yet")

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts instead of an MLP.

        Args:
            layer: its number, from 0. With a `sparse_step` of 2, these are layers 1, 3, 5 and so on.
        """
        raise NotImplementedError("week 4 day 2 task 4: MoeConfig.is_sparse is not written yet")


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
    raise NotImplementedError("week 4 day 2 task 4: load_moe_model is not written yet")


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
    raise NotImplementedError("week 4 day 2 task 4: flatten_experts is not written yet")


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
    raise NotImplementedError("week 4 day 2 task 4: build_moe is not written yet")


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
    raise NotImplementedError("week 4 day 2 task 4: take_experts is not written yet")
