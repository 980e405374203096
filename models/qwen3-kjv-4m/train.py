"""Train a four-million-parameter Qwen3 model on the King James text and export it for mlx-lm.

One run does everything, in this order:

1. reads the text with the `bible` command (Debian packages bible-kjv and bible-kjv-text);
2. holds out about 2% of the chapters for validation, with a fixed seed;
3. trains a byte-level BPE tokenizer of 4096 tokens on the remaining chapters;
4. trains the model in PyTorch on the CPU and saves its state every few minutes, so that a run that was
   stopped goes on from there when the same command is given again;
5. goes on for some minutes with a loss on repetitions added (see unloop.py), and blends the weights of before
   and after; this part begins anew when it is stopped;
6. writes the float32 weights in the Hugging Face layout and converts them with mlx-lm to 8 bits.

Two kinds of documents are mixed. A plain document is a run of whole verses, one on a line, up to the end of
its chapter. A chat document is a user turn that holds the beginning of a passage and an assistant turn that
holds what follows, so that the chat template means "go on from here".

    python train.py --out ../qwen3-kjv-4m --work build
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from corpus import END_OF_TEXT, Chapter, cut_rows, plain_document, read_chapters, split_chapters, word_list
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from unloop import draw_chat_openings, draw_plain_openings, unlikelihood

TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = [END_OF_TEXT, TURN_START, TURN_END]  # ids 0, 1, 2
STOP_IDS = [2, 0]

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

CHAT_SHARE = 0.35  # of the tokens
LONG_CHAT_SHARE = 0.12  # of the chat documents
REPLY_CHARACTERS = 500  # about 120 tokens

WARMUP_SHARE = 0.03
TOKENS_PER_STEP = 4096
SHORT_ROW, LONG_ROW = 256, 1024


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of the model, under the names that config.json uses."""

    vocab_size: int = 4096
    hidden_size: int = 192
    num_hidden_layers: int = 6
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 512
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6


# --- Tokenizer ------------------------------------------------------------------------------------


def train_tokenizer(chapters: list[Chapter], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer that can encode any Unicode text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(("\n".join(chapter.verses) for chapter in chapters), trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, not {vocab_size}")
    return tokenizer


# --- Documents ------------------------------------------------------------------------------------


def chat_document(prompt: str, reply: str) -> str:
    """Put a prompt and a reply into the form that the chat template gives."""
    user = f"{TURN_START}user\n{prompt}{TURN_END}\n"
    return f"{user}{TURN_START}assistant\n{reply}{TURN_END}\n{END_OF_TEXT}"


class DocumentSampler:
    """Draws plain and chat documents from chapters, for ever."""

    def __init__(self, chapters: list[Chapter], seed: int) -> None:
        self.chapters = chapters
        self.weights = [len(chapter.verses) for chapter in chapters]
        self.random = random.Random(seed)

    def draw_chapter(self) -> Chapter:
        """Draw a chapter with a chance that grows with its number of verses."""
        return self.random.choices(self.chapters, self.weights)[0]

    def draw_plain(self) -> str:
        """Draw a run of verses from the start of a chapter, or from any verse, to the end of the chapter."""
        verses = self.draw_chapter().verses
        start = 0 if self.random.random() < 0.4 else self.random.randrange(len(verses))
        return plain_document(verses[start:])

    def draw_chat(self) -> str:
        """Draw a user turn and the assistant turn that goes on from it."""
        verses = self.draw_chapter().verses
        whole, partial = self.draw_prompt_shape()
        start = self.random.randrange(len(verses))
        prompt = verses[start : start + whole]
        rest = verses[start + whole :]
        reply: list[str] = []
        if partial and rest:
            words = rest.pop(0).split(" ")
            cut = min(self.random.randint(2, 12), len(words) - 1)
            prompt.append(" ".join(words[:cut]))
            reply.append(" ".join(words[cut:]))
        reply += rest[: self.draw_reply_verses(reply)]
        while len(reply) > 1 and len("\n".join(reply)) > REPLY_CHARACTERS:
            reply.pop()
        if not prompt or not reply or not prompt[0] or not reply[0]:
            return self.draw_chat()
        return chat_document("\n".join(prompt), "\n".join(reply))

    def draw_prompt_shape(self) -> tuple[int, bool]:
        """Return how many whole verses a prompt has, and whether the beginning of another verse follows."""
        if self.random.random() < LONG_CHAT_SHARE:
            return self.random.randint(4, 28), self.random.random() < 0.3
        if self.random.random() < 0.45:
            return 0, True
        return self.random.randint(1, 3), self.random.random() < 0.2

    def draw_reply_verses(self, begun: list[str]) -> int:
        """Return how many whole verses a reply has after the rest of a verse, if it begins with one."""
        if begun and len(begun[0]) > 40:
            return self.random.choices([0, 1, 2, 3], [50, 28, 14, 8])[0]
        return self.random.choices([1, 2, 3, 4], [50, 28, 14, 8])[0]


class RowSampler:
    """Packs documents into rows of a fixed length; each row begins with the start of a document."""

    def __init__(self, chapters: list[Chapter], tokenizer: Tokenizer, seed: int) -> None:
        self.documents = DocumentSampler(chapters, seed)
        self.tokenizer = tokenizer
        self.tokens, self.chat_tokens = 1, 0

    def draw_row(self, length: int) -> list[int]:
        """Return one row of length + 1 tokens; what does not fit of the last document is dropped."""
        row: list[int] = []
        while len(row) <= length:
            chat = self.chat_tokens < CHAT_SHARE * self.tokens
            text = self.documents.draw_chat() if chat else self.documents.draw_plain()
            ids = self.tokenizer.encode(text).ids[: length + 1 - len(row)]
            self.tokens += len(ids)
            self.chat_tokens += len(ids) if chat else 0
            row += ids
        return row

    def draw_batch(self, size: int, length: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of shape (size, length)."""
        rows = torch.tensor([self.draw_row(length) for _ in range(size)])
        return rows[:, :-1], rows[:, 1:]

    def get_state(self) -> tuple[object, int, int]:
        """Return what set_state needs to go on with the same rows."""
        return self.documents.random.getstate(), self.tokens, self.chat_tokens

    def set_state(self, state: tuple[object, int, int]) -> None:
        """Go on from a state that get_state returned."""
        self.documents.random.setstate(state[0])
        self.tokens, self.chat_tokens = state[1:]


def validation_batches(chapters: list[Chapter], tokenizer: Tokenizer) -> list[tuple[Tensor, Tensor]]:
    """Return every held-out chapter as inputs and targets, cut into rows."""
    batches = []
    for chapter in chapters:
        for row in cut_rows(tokenizer.encode(plain_document(chapter.verses)).ids, LONG_ROW):
            piece = torch.tensor([row])
            batches.append((piece[:, :-1], piece[:, 1:]))
    return batches


# --- Model ----------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    """Root-mean-square normalization with a learned scale."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        scaled = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)
        return (scaled * self.weight).to(x.dtype)


def rotary_tables(config: ModelConfig, length: int) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of the rotary position embedding, of shape (length, head_dim)."""
    exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    angles = torch.outer(torch.arange(length).float(), config.rope_theta**-exponents)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + head_dim / 2) of a head by the angle of its position."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    """Causal grouped-query attention with normalized queries and keys."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of shape (batch, heads, length, head_dim)."""
        batch, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(batch, length, self.heads, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        return rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype), v

    def mix(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        """Attend and project back to the hidden size."""
        groups = self.heads // self.kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return self.mix(*self.project(x, cos, sin), causal=True)


class MLP(nn.Module):
    """The gated feed-forward layer (SwiGLU)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One transformer layer: attention, then the feed-forward layer, each normalized before."""

    def __init__(self, config: ModelConfig, dropout: float) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Decoder(nn.Module):
    """Embeddings, layers and the last normalization."""

    def __init__(self, config: ModelConfig, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, dropout) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.dropout = nn.Dropout(dropout)


class Qwen3(nn.Module):
    """A Qwen3 language model with tied embeddings; its parameters have the names of the checkpoint."""

    def __init__(self, config: ModelConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config, dropout)
        cos, sin = rotary_tables(config, config.max_position_embeddings)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.initialize()

    def initialize(self) -> None:
        """Draw the weights; layers that write into the residual stream begin smaller."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = 0.02 / math.sqrt(2 * self.config.num_hidden_layers) if residual else 0.02
                nn.init.normal_(parameter, std=scale)

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the output of the last layer, before the last normalization."""
        x = self.model.dropout(self.model.embed_tokens(ids))
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the scores of all tokens."""
        return functional.linear(self.model.norm(hidden), self.model.embed_tokens.weight)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over the targets."""
        logits = self.logits(self.hidden(ids))
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


# --- Training -------------------------------------------------------------------------------------


def learning_rate(progress: float, peak: float) -> float:
    """Rise linearly over the first 3% of the run, then fall along a cosine to 2% of the peak."""
    if progress < WARMUP_SHARE:
        return peak * max(progress, 1e-4) / WARMUP_SHARE
    fall = min(1.0, (progress - WARMUP_SHARE) / (1 - WARMUP_SHARE))
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * fall)))


def make_optimizer(model: nn.Module, weight_decay: float) -> torch.optim.Optimizer:
    """Return AdamW that decays the matrices and leaves the norms alone."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    norms = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.97), fused=True)


@torch.no_grad()
def validation_loss(model: Qwen3, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Return the mean loss for each token of the held-out chapters."""
    model.eval()
    total, count = 0.0, 0
    for ids, targets in batches:
        total += model(ids, targets).item() * targets.numel()
        count += targets.numel()
    model.train()
    return total / count


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Trainer:
    """Trains the model for a number of minutes; the schedule follows the clock."""

    def __init__(self, args: argparse.Namespace, tokenizer: Tokenizer, chapters: list[Chapter]) -> None:
        self.args = args
        training, held_out = split_chapters(chapters)
        self.state_path = args.work / "state.pt"
        self.curve_path = args.work / "training_curve.csv"
        self.model = Qwen3(ModelConfig(), args.dropout)
        self.compiled = self.model if args.no_compile else torch.compile(self.model, dynamic=False)
        self.optimizer = make_optimizer(self.model, args.weight_decay)
        self.rows = RowSampler(training, tokenizer, args.seed)
        self.validation = validation_batches(held_out, tokenizer)
        self.progress = Progress()
        self.curve: list[list[float]] = []
        if self.state_path.exists():
            self.load_state()

    def load_state(self) -> None:
        """Go on from the saved state."""
        state = torch.load(self.state_path, weights_only=False)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self.curve = state["curve"]
        self.rows.set_state(state["rows"])
        torch.set_rng_state(state["torch_random"])

    def save_state(self) -> None:
        """Save everything that is needed to go on."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(self.progress),
            "curve": self.curve,
            "rows": self.rows.get_state(),
            "torch_random": torch.get_rng_state(),
        }
        partial = self.state_path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.state_path)
        with self.curve_path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["step", "tokens", "train_loss", "val_loss", "lr"])
            writer.writerows(self.curve)

    def train_step(self, share: float, length: int, rate: float) -> tuple[float, float]:
        """Do one step at a given share of the run; return the loss and the learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        ids, targets = self.rows.draw_batch(TOKENS_PER_STEP // length, length)
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.compiled(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress.step += 1
        self.progress.tokens += targets.numel()
        return loss.item(), rate

    def run(self) -> None:
        """Train until the time is used up."""
        budget = self.args.minutes * 60
        losses: list[float] = []
        last, saved = time.monotonic(), time.monotonic()
        while self.progress.seconds < budget:
            share = self.progress.seconds / budget
            length = SHORT_ROW if share < self.args.short_share else LONG_ROW
            loss, rate = self.train_step(share, length, learning_rate(share, self.args.lr))
            losses.append(loss)
            now = time.monotonic()
            self.progress.seconds += now - last
            last = now
            finished = self.progress.seconds >= budget
            if self.progress.step % self.args.validate_every == 0 or finished:
                self.report(sum(losses) / len(losses), rate)
                losses = []
                last = time.monotonic()
            if finished or last - saved > self.args.save_minutes * 60:
                self.save_state()
                saved = last = time.monotonic()

    def unloop(self) -> None:
        """Go on with the ordinary loss and the unlikelihood loss together, then blend old and new weights.

        The blend keeps most of the cure for repetitions and gives back most of the validation loss it cost.
        """
        budget = self.args.unloop_minutes * 60
        start = time.monotonic()
        before = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        shares: list[float] = []
        losses: list[float] = []
        while (share := (time.monotonic() - start) / budget) < 1:
            draw = draw_plain_openings if len(shares) % 2 == 0 else draw_chat_openings
            prompts = draw(self.rows.documents, self.rows.tokenizer)
            penalty, looped = unlikelihood(self.model, prompts)
            penalty.backward()
            shares.append(looped)
            loss, rate = self.train_step(share, LONG_ROW, learning_rate(share, self.args.unloop_lr))
            losses.append(loss)
            print(f"unloop {len(shares):4d}  repeating greedy texts {looped:.0%}", flush=True)
            if len(shares) % 20 == 0:
                self.report(sum(losses[-20:]) / 20, rate)
        after = self.model.state_dict()
        blend = {name: torch.lerp(before[name], after[name], self.args.blend) for name in before}
        self.model.load_state_dict(blend)
        self.report(sum(losses[-20:]) / len(losses[-20:]), rate)
        self.save_state()

    def report(self, train_loss: float, rate: float) -> None:
        """Measure the validation loss and print one line."""
        val_loss = validation_loss(self.model, self.validation)
        p = self.progress
        self.curve.append([p.step, p.tokens, round(train_loss, 4), round(val_loss, 4), round(rate, 7)])
        print(
            f"step {p.step:5d}  {p.tokens / 1e6:6.2f} M tokens  {p.seconds / 60:5.1f} min  "
            f"{p.tokens / p.seconds:6.0f} tokens/s  "
            f"train {train_loss:.3f}  val {val_loss:.3f}  lr {rate:.2e}",
            flush=True,
        )


# --- Export ---------------------------------------------------------------------------------------


def model_settings(config: ModelConfig) -> dict[str, object]:
    """Return the contents of config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **asdict(config),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": STOP_IDS,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer, its settings, the chat template and the tokens that end a reply."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "generation_config.json", {"eos_token_id": STOP_IDS, "pad_token_id": 0})


def write_float32(
    tensors: dict[str, Tensor], settings: dict[str, object], tokenizer: Tokenizer, folder: Path
) -> None:
    """Write the weights as they were trained, in the Hugging Face layout."""
    import mlx.core as mx

    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: mx.array(tensor.numpy()) for name, tensor in tensors.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    write_json(folder / "config.json", settings)
    write_tokenizer(tokenizer, folder)


def write_quantized(source: Path, tokenizer: Tokenizer, folder: Path, dtype: str) -> None:
    """Convert the float32 checkpoint to 8 bits with mlx-lm; dtype is that of the scales and the norms.

    The routers of a mixture of experts are small and decide much, so they stay as they are.
    """
    import mlx.core as mx
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    model, config = load_model(source)
    config["torch_dtype"] = dtype
    model.set_dtype(getattr(mx, dtype))
    model, config = quantize_model(
        model, config, group_size=64, bits=8, quant_predicate=lambda path, _: not path.endswith(".mlp.gate")
    )
    save_model(folder, model)
    (folder / "model.safetensors.index.json").unlink()  # one file needs no index
    save_config(config, folder / "config.json")
    write_tokenizer(tokenizer, folder)


def polyline(points: list[tuple[float, float]], name: str) -> str:
    """Return one SVG line."""
    return f'<polyline class="{name}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def draw_curve(curve: list[list[float]], path: Path) -> None:
    """Draw the training and validation losses over the tokens as an SVG that suits light and dark pages."""
    left, top, width, height = 46.0, 14.0, 560.0, 250.0
    last = max(row[1] for row in curve)
    low, high = 2.5, 6.5

    def place(tokens: float, loss: float) -> tuple[float, float]:
        share = (min(max(loss, low), high) - low) / (high - low)
        return left + width * tokens / last, top + height * (1 - share)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 310" role="img" '
        'aria-label="Training and validation loss over the tokens seen">',
        "<style>text{font:12px sans-serif;fill:#444}.grid{stroke:#8885}polyline{fill:none;stroke-width:2}"
        ".train{stroke:#2a78c2}.val{stroke:#c8601a}.k1{fill:#2a78c2}.k2{fill:#c8601a}"
        "@media(prefers-color-scheme:dark){text{fill:#ccc}.train{stroke:#6db3f2}.val{stroke:#f09a5a}"
        ".k1{fill:#6db3f2}.k2{fill:#f09a5a}}</style>",
    ]
    for loss in (3, 4, 5, 6):
        x, y = place(0, loss)
        parts.append(f'<line class="grid" x1="{x}" y1="{y}" x2="{x + width}" y2="{y}"/>')
        parts.append(f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{loss}</text>')
    for millions in range(0, int(last / 1e6) + 1, 2):
        x, _ = place(millions * 1e6, low)
        parts.append(f'<text x="{x:.1f}" y="{top + height + 18}" text-anchor="middle">{millions}</text>')
    parts.append(
        f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">million tokens</text>'
    )
    parts.append(polyline([place(row[1], row[2]) for row in curve], "train"))
    parts.append(polyline([place(row[1], row[3]) for row in curve], "val"))
    parts.append(f'<text class="k1" x="{left + width - 150}" y="{top + 16}">training loss</text>')
    parts.append(f'<text class="k2" x="{left + width - 150}" y="{top + 34}">validation loss</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")


def export(trainer: Trainer, tokenizer: Tokenizer, chapters: list[Chapter]) -> None:
    """Write the finished folder."""
    work, out = trainer.args.work, trainer.args.out
    out.mkdir(parents=True, exist_ok=True)
    model = trainer.model
    write_float32(model.state_dict(), model_settings(model.config), tokenizer, work / "float32")
    write_quantized(work / "float32", tokenizer, out, trainer.args.dtype)
    (out / "words.txt").write_text("\n".join(word_list(chapters)) + "\n", encoding="utf-8")
    shutil.copy(trainer.curve_path, out)
    draw_curve(trainer.curve, out / "training_curve.svg")


# --- Command line ---------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the finished checkpoint")
    parser.add_argument("--work", type=Path, default=Path("build"), help="folder for the state of the run")
    parser.add_argument("--minutes", type=float, default=52.0, help="training time; the schedule follows it")
    parser.add_argument("--lr", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument(
        "--short-share", type=float, default=0.6, help="share of the run with rows of 256 tokens"
    )
    parser.add_argument("--validate-every", type=int, default=100, help="steps between two validations")
    parser.add_argument("--save-minutes", type=float, default=3.0, help="minutes between two saved states")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--no-compile", action="store_true", help="do without torch.compile and its C++ compiler"
    )
    parser.add_argument("--unloop-minutes", type=float, default=12.0, help="time of the second part")
    parser.add_argument("--unloop-lr", type=float, default=1e-3, help="its highest learning rate")
    parser.add_argument("--blend", type=float, default=0.7, help="share of the weights after the second part")
    parser.add_argument("--dtype", default="float32", help="type of the scales and norms in the export")
    parser.add_argument("--export-only", action="store_true", help="export the saved state without training")
    return parser.parse_args()


def main() -> None:
    """Build the tokenizer, train and export."""
    args = parse_arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    chapters = read_chapters()
    tokenizer = train_tokenizer(split_chapters(chapters)[0], ModelConfig().vocab_size)
    trainer = Trainer(args, tokenizer, chapters)
    if not args.export_only:
        trainer.run()
        trainer.unloop()
    export(trainer, tokenizer, chapters)


if __name__ == "__main__":
    main()
