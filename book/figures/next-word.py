"""How four tokens become one distribution over the vocabulary, printed as an SVG."""

import mlx.core as mx

from kernel_runtime.checkpoint import load_tokenizer
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from tiny_llm_ref.model.loader import load_model

TEXT = "The LORD is my"
NUM_WORDS = 5
COLUMN, STRIP = 88, 96  # pixels: from one token to the next, and the height of a vector
ROWS = 24  # cells drawn of each vector, each the mean size of some of its numbers


def strip(vector: mx.array, x: float, y: float) -> str:
    """A vector as a column of cells, darker where its numbers are larger."""
    sizes = mx.mean(mx.abs(vector).reshape(ROWS, -1), axis=-1)
    shades = (sizes / mx.max(sizes)).tolist()
    height = STRIP / ROWS
    return "".join(
        f'<rect x="{x}" y="{y + height * i:.1f}" width="30" height="{height:.1f}" '
        f'fill-opacity="{0.08 + 0.8 * shade:.2f}"/>'
        for i, shade in enumerate(shades)
    )


def label(text: str, x: float, y: float, anchor: str = "middle", more: str = "") -> str:
    """Text at a place."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{more}>{text}</text>'


def main() -> None:
    """Print the figure."""
    path = resolve_checkpoint(SHIPPED_MODEL)
    model, tokenizer = load_model(path, mx.float32), load_tokenizer(path)
    ids = tokenizer.encode(TEXT)
    vectors = model.embedding(mx.array([ids]))[0]
    probabilities = mx.softmax(model(mx.array([ids]))[0, -1])
    likeliest = mx.argsort(-probabilities)[:NUM_WORDS].tolist()
    width = COLUMN * len(ids)
    parts = []
    for i, id in enumerate(ids):
        x = COLUMN * i + COLUMN / 2
        parts += [
            f'<rect x="{x - 36}" y="8" width="72" height="24" rx="4" fill="none" stroke="currentColor"/>',
            label(tokenizer.decode([id]).strip(), x, 25, more=' font-weight="bold"'),
            label(str(id), x, 52),
            strip(vectors[i], x - 15, 64),
            f'<path d="M{x} 164v12" stroke="currentColor"/>',
        ]
    parts += [
        f'<rect x="8" y="178" width="{width - 16}" height="42" rx="4" fill-opacity="0.12" '
        'stroke="currentColor"/>',
        label(f"{len(model.layers)} layers", width / 2, 196),
        label(
            "tokens look back at earlier ones; each vector is changed", width / 2, 212, more=' font-size="11"'
        ),
        f'<path d="M{width - COLUMN / 2} 221v14" stroke="#d97a1f" stroke-width="2"/>',
        strip(model.hidden_states(mx.array([ids]), 0)[0, -1], width - COLUMN / 2 - 15, 237),
        label("one score for each", width - COLUMN - 8, 268, "end"),
        label(f"of {len(probabilities):,} tokens", width - COLUMN - 8, 283, "end"),
    ]
    for i, id in enumerate(likeliest):
        y, share = 356 + 20 * i, probabilities[id].item()
        parts += [
            label(tokenizer.decode([id]).strip(), 116, y, "end"),
            f'<rect x="124" y="{y - 11}" width="{1400 * share:.1f}" height="13" fill="#d97a1f"/>',
            label(f"{share:.1%}", 130 + 1400 * share, y, "start"),
        ]
    words = ", ".join(f"{tokenizer.decode([id]).strip()} {probabilities[id].item():.1%}" for id in likeliest)
    print(
        f'<svg style="max-width: 460px" viewBox="0 0 {width} {356 + 20 * NUM_WORDS - 8}" fill="currentColor" '
        'font-size="13" role="img">'
        f"<title>From the words {TEXT} to the probabilities of the next one</title>"
        f"<desc>Four tokens with the ids {ids} become four vectors of {vectors.shape[-1]} numbers, pass "
        f"{len(model.layers)} layers, and the last vector becomes probabilities: {words}.</desc>"
        + "".join(parts)
        + "</svg>"
    )


if __name__ == "__main__":
    main()
