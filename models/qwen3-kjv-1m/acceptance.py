"""Measure how well a draft model predicts what the larger model says next, on the larger model's own text.

The larger model, qwen3-kjv-4m, continues openings from held-out chapters: plain text and replies in a chat,
greedily and at temperature 0.8. The models are compared at each token that it writes, up to the one that ends
the text. With p for the larger model's distribution there and q for the draft model's:

- agreement: how often p and q have the same likeliest token, so that greedy decoding accepts the draft.
- overlap: the mean of sum(min(p, q)), the probability that a token drawn from q is accepted when sampling.
  p and q are taken at the text's temperature, and at temperature 1 for greedy text.

    python acceptance.py .
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

TARGET = Path(__file__).parent.parent / "qwen3-kjv-4m"
sys.path.insert(0, str(TARGET))

from corpus import read_chapters, split_chapters  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from train import DocumentSampler, ModelConfig, Qwen3  # noqa: E402
from unloop import STOP_IDS, draw_chat_openings, draw_plain_openings, go_on  # noqa: E402

OPENINGS = {"plain": draw_plain_openings, "chat": draw_chat_openings}
TEMPERATURES = (0.0, 0.8)
NEW_TOKENS = 96


@dataclass(frozen=True)
class Sample:
    """Texts of the larger model, all of one kind; `written` marks the tokens to be predicted."""

    kind: str
    temperature: float
    ids: Tensor
    written: Tensor


@dataclass(frozen=True)
class Acceptance:
    """Means over the tokens of one kind of text."""

    tokens: int
    agreement: float
    overlap: float


def load_expanded(folder: Path) -> Qwen3:
    """Load an exported checkpoint with its 8-bit weights expanded to float32."""
    import mlx.core as mx
    import numpy as np

    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = Qwen3(ModelConfig(**{field.name: settings[field.name] for field in fields(ModelConfig)}))
    tensors = mx.load(str(folder / "model.safetensors"))
    state = {}
    for name in model.state_dict():
        tensor, stem = tensors[name], name.removesuffix(".weight")
        if f"{stem}.scales" in tensors:
            scales, biases = tensors[f"{stem}.scales"], tensors[f"{stem}.biases"]
            tensor = mx.dequantize(tensor, scales, biases, group_size=64, bits=8)
        state[name] = torch.from_numpy(np.array(tensor.astype(mx.float32)))
    model.load_state_dict(state)
    return model.eval()


def after_stop(ids: Tensor, begin: int) -> Tensor:
    """Mark the tokens that follow a token which ends the text and stands at position `begin` or later."""
    stops = torch.isin(ids, torch.tensor(STOP_IDS)).int()
    stops[:, :begin] = 0
    return stops.cumsum(1) - stops > 0


def draw_samples(target: Qwen3, tokenizer: Tokenizer, batches: int, seed: int) -> Iterator[Sample]:
    """Let the larger model continue openings of held-out chapters, `batches` times for each kind of text."""
    documents = DocumentSampler(split_chapters(read_chapters())[1], seed)
    torch.manual_seed(seed)
    for kind, draw_openings in OPENINGS.items():
        for temperature in TEMPERATURES:
            for _ in range(batches):
                openings = draw_openings(documents, tokenizer)
                ids = go_on(target, openings, NEW_TOKENS, temperature)
                begin = openings.shape[1]
                yield Sample(kind, temperature, ids, ~after_stop(ids, begin)[:, begin:])


@torch.no_grad()
def compare(target: Qwen3, draft: Qwen3, sample: Sample) -> tuple[Tensor, Tensor]:
    """Return for each written token whether the likeliest ones agree, and how much p and q overlap."""
    begin = sample.ids.shape[1] - sample.written.shape[1]
    p, q = (
        model.logits(model.hidden(sample.ids[:, :-1])[:, begin - 1 :][sample.written]).float()
        for model in (target, draft)
    )
    agree = p.argmax(-1) == q.argmax(-1)
    scale = sample.temperature or 1.0
    return agree, torch.minimum(torch.softmax(p / scale, -1), torch.softmax(q / scale, -1)).sum(-1)


def measure(target: Qwen3, draft: Qwen3, samples: list[Sample]) -> dict[tuple[str, float], Acceptance]:
    """Return the acceptance for every kind of text at every temperature."""
    found = {}
    for kind, temperature in dict.fromkeys((sample.kind, sample.temperature) for sample in samples):
        pairs = [compare(target, draft, s) for s in samples if (s.kind, s.temperature) == (kind, temperature)]
        agree, overlap = (torch.cat(column).float() for column in zip(*pairs, strict=True))
        found[kind, temperature] = Acceptance(len(agree), agree.mean().item(), overlap.mean().item())
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("draft", type=Path, help="folder of the exported draft model")
    parser.add_argument(
        "--batches", type=int, default=3, help="batches of 32 openings for each row of the table"
    )
    args = parser.parse_args()
    target, draft = load_expanded(TARGET), load_expanded(args.draft)
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    samples = list(draw_samples(target, tokenizer, args.batches, seed=0))
    print("| Text | Temperature | Tokens | Same likeliest token | Overlap |")
    print("|---|---|---|---|---|")
    for (kind, temperature), found in measure(target, draft, samples).items():
        shares = f"{found.agreement:.1%} | {found.overlap:.1%}"
        print(f"| {kind} | {temperature or 'greedy'} | {found.tokens:,} | {shares} |")


if __name__ == "__main__":
    main()
