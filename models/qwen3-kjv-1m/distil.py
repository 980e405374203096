"""Train a draft model of a million parameters for qwen3-kjv-4m by distillation, and export it for mlx-lm.

A draft is accepted where the larger model, the teacher, agrees. So the draft model learns from the teacher's
distribution and not from the text: at every position, the loss is the Kullback-Leibler divergence of its own
distribution from the teacher's. One run does everything, in this order:

1. The teacher prepares lessons. Half of them are rows of the King James text. The others are rows that the
   teacher continued in its own words, since that is the text on which drafts are made. A lesson keeps the
   last hidden states of the teacher, from which its distribution is quickly computed, for use in many steps.
2. The draft model starts with the teacher's embeddings, projected to its own hidden size, and is trained for
   some minutes; the schedule follows the clock, and the time in which the process is stopped does not count.
3. The weights are exported in 8 bits, in the same way as the teacher's.

    python distil.py --out . --work build
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch
from acceptance import TARGET, after_stop, draw_samples, load_expanded, measure
from corpus import read_chapters, split_chapters
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from train import (
    ModelConfig,
    Qwen3,
    RowSampler,
    learning_rate,
    make_optimizer,
    model_settings,
    write_float32,
    write_quantized,
)
from unloop import go_on

DRAFT = ModelConfig(
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    intermediate_size=448,
)
LESSON = 2048  # tokens
BATCH = 8 * LESSON
READ_ROW, WRITTEN_ROW = 1024, 256
OPENINGS = (8, 16, 32, 64, 128)  # tokens
TEMPERATURES = (0.0, 0.8)
LONGEST_STEP = 5.0  # seconds

Lesson = tuple[Tensor, Tensor]  # token ids (rows, length), the teacher's hidden states (rows, length, size)
Loss = Callable[[Qwen3, Qwen3, Tensor, Tensor], Tensor]  # of the teacher, the draft model and a lesson


def write(teacher: Qwen3, rows: Tensor, opening: int, temperature: float) -> Tensor:
    """Let the teacher replace what follows the openings of the rows, until it ends the text it is in."""
    ids = go_on(teacher, rows[:, :opening], rows.shape[1] - opening, temperature)
    return torch.where(after_stop(ids, opening), rows, ids)


@torch.no_grad()
def prepare_lessons(
    teacher: Qwen3, rows: RowSampler, tokens: int, compiled: bool
) -> tuple[list[Lesson], list[Lesson]]:
    """Return lessons of the King James text and lessons that the teacher wrote, `tokens` tokens of each."""
    hidden = torch.compile(teacher.hidden, dynamic=False) if compiled else teacher.hidden
    read: list[Lesson] = []
    written: list[Lesson] = []
    for batch in range(tokens // BATCH):
        plain, _ = rows.draw_batch(BATCH // READ_ROW, READ_ROW)
        begun, _ = rows.draw_batch(BATCH // WRITTEN_ROW, WRITTEN_ROW)
        opening, temperature = OPENINGS[batch % len(OPENINGS)], TEMPERATURES[batch % len(TEMPERATURES)]
        with torch.autocast("cpu", torch.bfloat16):
            for lessons, ids in ((read, plain), (written, write(teacher, begun, opening, temperature))):
                lessons += [(part, hidden(part).bfloat16()) for part in ids.split(LESSON // ids.shape[1])]
        print(f"lessons: {(batch + 1) * BATCH:,} tokens of each kind", flush=True)
    return read, written


def load_lessons(
    teacher: Qwen3, tokenizer: Tokenizer, args: argparse.Namespace
) -> tuple[list[Lesson], list[Lesson]]:
    """Prepare the lessons, unless the work folder has them."""
    kept = args.work / "lessons.pt"
    if not kept.exists():
        rows = RowSampler(split_chapters(read_chapters())[0], tokenizer, args.seed)
        torch.save(prepare_lessons(teacher, rows, args.tokens, not args.no_compile), kept)
    lessons: tuple[list[Lesson], list[Lesson]] = torch.load(kept)
    return lessons


def project_embeddings(teacher: Qwen3, draft: Qwen3) -> None:
    """Start with the teacher's embeddings, projected to the directions in which they vary most."""
    embeddings = teacher.model.embed_tokens.weight.detach()
    _, _, directions = torch.linalg.svd(embeddings, full_matrices=False)
    draft.model.embed_tokens.weight.data = embeddings @ directions[: draft.config.hidden_size].T


def divergence(teacher: Qwen3, draft: Qwen3, ids: Tensor, states: Tensor) -> Tensor:
    """Return the mean divergence of the draft model's distribution from the teacher's, in nats per token."""
    with torch.no_grad():
        wanted = torch.log_softmax(teacher.logits(states).float(), -1).flatten(0, 1)
    found = torch.log_softmax(draft.logits(draft.hidden(ids)).float(), -1).flatten(0, 1)
    return functional.kl_div(found, wanted, log_target=True, reduction="batchmean")


def train(
    teacher: Qwen3,
    draft: Qwen3,
    tokenizer: Tokenizer,
    kinds: tuple[list[Lesson], ...],
    args: argparse.Namespace,
    loss_of: Loss = divergence,
) -> None:
    """Train the draft model; each step takes one lesson of each kind."""
    if not args.no_compile:
        loss_of = torch.compile(loss_of, dynamic=False)
    optimizer = make_optimizer(draft, 0.05)
    samples = list(draw_samples(teacher, tokenizer, batches=1, seed=1))
    chance = random.Random(args.seed)
    step, seconds, last = 0, 0.0, time.monotonic()
    while seconds < 60 * args.minutes:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(seconds / (60 * args.minutes), args.lr)
        losses = []
        for lessons in kinds:
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(teacher, draft, *chance.choice(lessons))
            loss.backward()
            losses.append(f"{loss.item():.3f}")
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        now = time.monotonic()
        seconds += min(now - last, LONGEST_STEP)
        last = now
        if step % args.measure_every == 0 or seconds >= 60 * args.minutes:
            found = measure(teacher, draft, samples).values()
            shares = "  ".join(f"{share.agreement:.1%} {share.overlap:.1%}" for share in found)
            print(f"step {step:5d}  {seconds:5.0f} s  loss {' '.join(losses)}  {shares}", flush=True)
            torch.save(draft.state_dict(), args.work / "weights.pt")


def parse_arguments(description: str) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the finished checkpoint")
    parser.add_argument(
        "--work", type=Path, default=Path("build"), help="folder for lessons and float32 weights"
    )
    parser.add_argument("--tokens", type=int, default=600_000, help="tokens of lessons, of each kind")
    parser.add_argument("--minutes", type=float, default=25.0, help="training time; the schedule follows it")
    parser.add_argument("--lr", type=float, default=4e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--measure-every", type=int, default=400, help="steps between two measurements")
    parser.add_argument(
        "--no-compile", action="store_true", help="do without torch.compile and its C++ compiler"
    )
    return parser.parse_args()


def export(
    tensors: dict[str, Tensor], settings: dict[str, object], tokenizer: Tokenizer, args: argparse.Namespace
) -> None:
    """Write the finished folder."""
    args.out.mkdir(parents=True, exist_ok=True)
    write_float32(tensors, settings, tokenizer, args.work / "float32")
    write_quantized(args.work / "float32", tokenizer, args.out, "float32")
    shutil.copy(TARGET / "demo_prompts.json", args.out)


def main() -> None:
    """Prepare the lessons, train and export."""
    args = parse_arguments(__doc__ or "")
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    teacher, draft = load_expanded(TARGET), Qwen3(DRAFT)
    project_embeddings(teacher, draft)
    train(teacher, draft, tokenizer, load_lessons(teacher, tokenizer, args), args)
    export(draft.state_dict(), model_settings(draft.config), tokenizer, args)


if __name__ == "__main__":
    main()
