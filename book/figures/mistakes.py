"""What a mistake in the model costs on a known text, printed as an SVG: most of them crash nothing."""

import json

import mlx.core as mx

from kernel_runtime.checkpoint import load_tokenizer
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from tiny_llm_ref import Qwen3Model
from tiny_llm_ref.model.loader import load_model

PATH = resolve_checkpoint(SHIPPED_MODEL)
LEFT, TOP, STEP, WIDTH = 176, 24, 22, 162


def nats_per_token(model: Qwen3Model, tokens: list[int]) -> float:
    """The mean of minus the log-probability of each token but the first, given those before it."""
    logits = model(mx.array([tokens]))[0, :-1]
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return -float(mx.mean(mx.take_along_axis(logprobs, mx.array(tokens[1:])[:, None], axis=-1)))


def swap(part: object, first: str, second: str) -> None:
    """Exchange two attributes."""
    a, b = getattr(part, first), getattr(part, second)
    setattr(part, first, b)
    setattr(part, second, a)


def without_final_norm(model: Qwen3Model) -> None:
    """The head reads the residual stream as it is."""
    model.norm = lambda x: x  # type: ignore[assignment]


def with_gate_and_up_swapped(model: Qwen3Model) -> None:
    """The other projection is activated."""
    for layer in model.layers:
        swap(layer.mlp, "gate", "up")


def with_keys_of_neighbours(model: Qwen3Model) -> None:
    """RoPE turns neighbours in place of halves."""
    for layer in model.layers:
        layer.attention.project_heads.rope.traditional = True


def without_head_norms(model: Qwen3Model) -> None:
    """As a Llama would attend."""
    for layer in model.layers:
        heads = layer.attention.project_heads
        heads.q_norm = heads.k_norm = None


def without_last_layer(model: Qwen3Model) -> None:
    """One layer fewer."""
    model.layers.pop()


def with_block_norms_swapped(model: Qwen3Model) -> None:
    """Each half reads through the norm of the other."""
    for layer in model.layers:
        swap(layer, "input_layernorm", "post_attention_layernorm")


def with_head_norms_swapped(model: Qwen3Model) -> None:
    """Queries get the norm of the keys."""
    for layer in model.layers:
        swap(layer.attention.project_heads, "q_norm", "k_norm")


MISTAKES = (
    ("right", lambda model: None),
    ("q_norm and k_norm swapped", with_head_norms_swapped),
    ("norms of the block swapped", with_block_norms_swapped),
    ("last layer left out", without_last_layer),
    ("RoPE of the other pairing", with_keys_of_neighbours),
    ("no q_norm and k_norm", without_head_norms),
    ("gate and up swapped", with_gate_and_up_swapped),
    ("no final norm", without_final_norm),
)


def main() -> None:
    """Print the figure."""
    text = json.loads((PATH / "demo_prompts.json").read_text(encoding="utf-8"))[-1]
    tokens = load_tokenizer(PATH).encode(text)
    rows = []
    for name, apply in MISTAKES:
        model = load_model(PATH, mx.float32)
        apply(model)
        rows.append((name, nats_per_token(model, tokens)))
    scale = WIDTH / max(nats for _, nats in rows)
    parts = []
    for i, (name, nats) in enumerate(rows):
        y = TOP + STEP * i
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 12}" text-anchor="end">{name}</text>'
            f'<rect x="{LEFT}" y="{y}" width="{nats * scale:.1f}" height="16" '
            f'fill="{"#d97a1f" if i == 0 else "currentColor"}" fill-opacity="{1 if i == 0 else 0.45}"/>'
            f'<text x="{LEFT + nats * scale + 5:.1f}" y="{y + 12}">{nats:.3f}</text>'
        )
    described = ", ".join(f"{name} {nats:.3f}" for name, nats in rows)
    print(
        f'<svg style="max-width: 520px" viewBox="0 0 384 {TOP + STEP * len(rows)}" '
        'fill="currentColor" font-size="10.5" role="img">'
        "<title>Nats per token of the shipped checkpoint, right and with one mistake</title>"
        f'<desc>{described}.</desc><text x="{LEFT}" y="14">nats per token, {len(tokens)} tokens</text>'
        + "".join(parts)
        + "</svg>"
    )


if __name__ == "__main__":
    main()
