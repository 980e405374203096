"""Load a model whose blocks have mixtures of experts: Qwen3-MoE."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..ops.experts import ExpertProjection
from .config import ModelConfig
from .given.operations import PLAIN_OPERATIONS, Operations
from .loader import Tensors
from .qwen3 import Qwen3Model

MODEL_TYPE = "qwen3_moe"


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
        raise NotImplementedError("week 4 day 2 task 4: MoeConfig.from_dict is not written yet")

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        raise NotImplementedError("week 4 day 2 task 4: MoeConfig.is_sparse is not written yet")


def load_moe_model(
    path: Path, dtype: mx.Dtype | None = None, operations: Operations = PLAIN_OPERATIONS
) -> Qwen3Model:
    """The model of a checkpoint folder of type `qwen3_moe`; arguments and errors as for `load_model`."""
    raise NotImplementedError("week 4 day 2 task 4: load_moe_model is not written yet")


def flatten_experts(tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Store the weights of all experts below each other, in one matrix per projection: [X x out, in].

    mlx-lm keeps them as [X, out, in], under `switch_mlp`; Qwen's own checkpoints have a matrix per expert.
    """
    raise NotImplementedError("week 4 day 2 task 4: flatten_experts is not written yet")


def build_moe(
    moe: MoeConfig, config: ModelConfig, tensors: Tensors, name: str
) -> Callable[[mx.array], mx.array]:
    """The mixture whose tensors start with `name`, model.layers.i.mlp; an MLP in layers without experts."""
    raise NotImplementedError("week 4 day 2 task 4: build_moe is not written yet")


def take_experts(
    tensors: Tensors, layer: str, num_experts: int, num_outputs: int, num_inputs: int
) -> ExpertProjection:
    """The product of rows with the weights of their experts, packed or not."""
    raise NotImplementedError("week 4 day 2 task 4: take_experts is not written yet")
