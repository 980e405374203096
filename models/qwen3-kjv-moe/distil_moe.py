"""Train a mixture of experts of two million parameters by distillation from qwen3-kjv-4m, and export it.

The lessons, the training loop and the export are those of the draft model, in ../qwen3-kjv-1m/distil.py. Two
things are new:

1. The feed-forward layer of every block is a mixture of eight experts, of which the router chooses two for
   each token. In training all experts are computed for every token, as one wide layer, and the weights of
   those that were not chosen are zero.
2. The loss grows when the router prefers some experts (Fedus et al., "Switch Transformers", arXiv:2101.03961,
   equation 4).

    python distil_moe.py --out . --work build
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent.parent / "qwen3-kjv-1m"))

from acceptance import TARGET, load_expanded
from corpus import read_chapters, split_chapters
from distil import divergence, export, load_lessons, parse_arguments, project_embeddings, train
from train import MLP, ModelConfig, Qwen3, model_settings, validation_batches

BALANCE_WEIGHT = 0.01


@dataclass(frozen=True)
class MoeConfig(ModelConfig):
    """The sizes of the model; intermediate_size is that of all experts together."""

    hidden_size: int = 128
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    num_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 128
    norm_topk_prob: bool = True
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()


class Mixture(MLP):
    """A router and its experts; expert e is the e-th part of the hidden layer of one wide MLP.

    After each call, `shares` holds the share of the choices that fell on each expert, and `balance` the
    balancing loss, which is 1 if all experts are chosen equally often.
    """

    def __init__(self, config: MoeConfig) -> None:
        super().__init__(config)
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.chosen = config.num_experts_per_tok

    def route(self, x: Tensor) -> Tensor:
        """Return the weight of each expert for each token; all but the chosen ones are zero."""
        with torch.autocast("cpu", enabled=False):
            scores = torch.softmax(self.gate(x.float()), -1)
        best, experts = scores.topk(self.chosen)
        weights = torch.zeros_like(scores).scatter(-1, experts, best / best.sum(-1, keepdim=True))
        self.shares = (weights.detach() > 0).float().mean((0, 1)) / self.chosen
        self.balance = scores.shape[-1] * (self.shares * scores.mean((0, 1))).sum()
        return weights

    def forward(self, x: Tensor) -> Tensor:
        weights = self.route(x)
        hidden = functional.silu(self.gate_proj(x)) * self.up_proj(x)
        parts = hidden.unflatten(-1, (weights.shape[-1], -1)) * weights[..., None].to(hidden.dtype)
        return self.down_proj(parts.flatten(-2))


class Qwen3Moe(Qwen3):
    """A Qwen3 language model with a mixture of experts in every block."""

    def __init__(self, config: MoeConfig) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = Mixture(config)
        self.initialize()

    def mixtures(self) -> list[Mixture]:
        """Return the mixture of each layer."""
        return [layer.mlp for layer in self.model.layers]


def balanced_divergence(teacher: Qwen3, student: Qwen3Moe, ids: Tensor, states: Tensor) -> Tensor:
    """Return the divergence from the teacher plus the loss that balances the experts."""
    loss = divergence(teacher, student, ids, states)
    return loss + BALANCE_WEIGHT * torch.stack([mixture.balance for mixture in student.mixtures()]).mean()


def split_experts(model: Qwen3Moe) -> dict[str, Tensor]:
    """Return the weights under the names of mlx-lm, those of the experts as (experts, outputs, inputs)."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        block, _, projection = name.partition(".mlp.")
        if projection in ("gate_proj.weight", "up_proj.weight"):
            tensor = tensor.unflatten(0, (model.config.num_experts, -1))
        elif projection == "down_proj.weight":
            tensor = tensor.unflatten(1, (model.config.num_experts, -1)).transpose(0, 1)
        if tensor.dim() == 3:
            name = f"{block}.mlp.switch_mlp.{projection}"
        tensors[name] = tensor.contiguous()
    return tensors


@torch.no_grad()
def print_shares(model: Qwen3Moe, batches: list[tuple[Tensor, Tensor]]) -> None:
    """Print for each layer the share of the choices that fall on each expert in the held-out chapters."""
    shares = torch.zeros(len(model.mixtures()), model.config.num_experts)
    for ids, _ in batches:
        model.hidden(ids)
        shares += torch.stack([mixture.shares for mixture in model.mixtures()]) * ids.numel()
    for layer, row in enumerate((shares / shares.sum(1, keepdim=True)).tolist()):
        print(f"| {layer} | {' | '.join(f'{share:.1%}' for share in row)} |")


def main() -> None:
    """Prepare the lessons, train and export."""
    args = parse_arguments(__doc__ or "")
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    teacher, student = load_expanded(TARGET), Qwen3Moe(MoeConfig())
    project_embeddings(teacher, student)
    train(teacher, student, tokenizer, load_lessons(teacher, tokenizer, args), args, balanced_divergence)
    print_shares(student, validation_batches(split_chapters(read_chapters())[1], tokenizer))
    settings = model_settings(student.config)
    settings |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    export(split_experts(student), settings, tokenizer, args)


if __name__ == "__main__":
    main()
