"""How long the vectors of the shipped checkpoint are before each layer, printed as an SVG."""

import mlx.core as mx

from kernel_runtime.checkpoint import load_tokenizer
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from tiny_llm_ref.model.loader import load_model

TEXT = "In the beginning God created the heaven and the earth."
LEFT, BOTTOM, HEIGHT, WIDTH, STEP = 30, 150, 112, 28, 46


def root_mean_square(x: mx.array) -> float:
    """Of each vector, averaged over all of them."""
    return float(mx.mean(mx.sqrt(mx.mean(mx.square(x), axis=-1))))


def sizes() -> list[float]:
    """Of the residual stream after the embedding and after each layer."""
    path = resolve_checkpoint(SHIPPED_MODEL)
    model = load_model(path, mx.float32)
    x = model.embedding(mx.array([load_tokenizer(path).encode(TEXT)]))
    result = [root_mean_square(x)]
    for layer in model.layers:
        x = layer(x)
        result.append(root_mean_square(x))
    return result


def main() -> None:
    """Print the figure."""
    values = sizes()
    parts = []
    for i, value in enumerate(values):
        x, height = LEFT + STEP * i, HEIGHT * value / max(values)
        name = "embed" if i == 0 else f"after {i}"
        parts.append(
            f'<rect x="{x}" y="{BOTTOM - height:.1f}" width="{WIDTH}" height="{height:.1f}" '
            'fill-opacity="0.45"/>'
            f'<text x="{x + WIDTH / 2}" y="{BOTTOM - max(height, 12) - 5:.1f}" text-anchor="middle">'
            f"{value:.2g}</text>"
            f'<text x="{x + WIDTH / 2}" y="{BOTTOM + 15}" text-anchor="middle">{name}</text>'
        )
    y = BOTTOM - HEIGHT / max(values)
    print(
        '<svg style="max-width: 520px" viewBox="0 0 360 172" fill="currentColor" font-size="11" '
        'role="img">'
        "<title>Root mean square of the residual stream, layer by layer</title>"
        f"<desc>From {values[0]:.2g} after the embedding to {values[-1]:.2g} after layer "
        f"{len(values) - 1}. A line marks 1, the size that RMSNorm gives to what a layer reads.</desc>"
        + "".join(parts)
        + f'<path d="M{LEFT - 6} {y:.1f}H352" stroke="#d97a1f" stroke-width="2" stroke-dasharray="5 3"/>'
        f'<text x="{LEFT - 9}" y="{y:.1f}" dy="4" text-anchor="end">1</text></svg>'
    )


if __name__ == "__main__":
    main()
