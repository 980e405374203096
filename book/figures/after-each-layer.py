"""The next word that the shipped checkpoint would choose after each of its layers, printed as an SVG."""

import mlx.core as mx

from kernel_runtime.checkpoint import load_tokenizer
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from tiny_llm_ref.model.loader import load_model

TEXT = "The LORD is my"
NUM_WORDS = 3
LEFT, ROW, COLUMN, BAR = 92, 30, 112, 100


def main() -> None:
    """Print the figure."""
    path = resolve_checkpoint(SHIPPED_MODEL)
    model, tokenizer = load_model(path, mx.float32), load_tokenizer(path)
    x = model.embedding(mx.array([tokenizer.encode(TEXT)]))
    parts, words = [], []
    for row in range(len(model.layers) + 1):
        if row:
            x = model.layers[row - 1](x)
        probabilities = mx.softmax(model.logits(x)[0, -1])
        y = ROW * row
        name = f"after layer {row}" if row else "no layer yet"
        parts.append(f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end">{name}</text>')
        for i, id in enumerate(mx.argsort(-probabilities)[:NUM_WORDS].tolist()):
            left, share = LEFT + COLUMN * i, probabilities[id].item()
            word = tokenizer.decode([id]).strip().replace("<|im_end|>", "(end)")
            words.append(f"{name}: {word} {share:.0%}")
            parts.append(
                f'<text x="{left}" y="{y + 12}">{word} <tspan fill-opacity="0.7">{share:.0%}</tspan></text>'
                f'<rect x="{left}" y="{y + 17}" width="{max(BAR * share, 0.5):.1f}" height="5" '
                'fill="#d97a1f"/>'
            )
    size = f"{LEFT + COLUMN * NUM_WORDS} {ROW * (len(model.layers) + 1)}"
    print(
        f'<svg style="max-width: 520px" viewBox="0 0 {size}" '
        'fill="currentColor" font-size="12" role="img">'
        f"<title>The likeliest next words after each layer, for {TEXT}</title>"
        f"<desc>{'; '.join(words)}.</desc>" + "".join(parts) + "</svg>"
    )


if __name__ == "__main__":
    main()
