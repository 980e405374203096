"""The softmax of five scores in three blocks, its maximum, sum and average after each, printed as an SVG."""

from tiny_llm_ref.ops.flash_attention import SoftmaxState, absorb_block, empty_state, weighted_average

# isort: split
import mlx.core as mx  # after the package, which puts a fast BLAS in place before MLX is loaded

ORANGE = "#d97a1f"
SCORES, VALUES, BLOCK = [1.0, 3.0, 5.0, 2.0, 6.0], [10.0, 20.0, 30.0, 40.0, 50.0], 2
UNIT = 9  # of a score


def bars(x: float, y: float, end: int) -> str:
    """The scores, those of the block at hand in colour and what comes later faint."""
    parts = []
    for i, score in enumerate(SCORES):
        is_now = end - BLOCK <= i < end
        look = f'fill="{ORANGE}"' if is_now else f'fill-opacity="{0.55 if i < end else 0.12}"'
        height = UNIT * score
        parts.append(f'<rect x="{x + 17 * i}" y="{y - height}" width="14" height="{height}" {look}/>')
        parts.append(f'<text x="{x + 17 * i + 7}" y="{y + 13}" text-anchor="middle">{score:g}</text>')
    seen = max(SCORES[:end])
    parts.append(
        f'<path d="M{x - 3} {y - UNIT * seen}h91" stroke="currentColor" stroke-dasharray="4 3"/>'
        f'<text x="{x + 90}" y="{y - UNIT * seen + 4}">m</text>'
    )
    return "".join(parts)


def main() -> None:
    """Print the figure."""
    state: SoftmaxState = empty_state((1,), 1)
    parts = []
    for step, start in enumerate(range(0, len(SCORES), BLOCK)):
        end = start + BLOCK
        before = state.maximum.item()
        block = mx.array([SCORES[start:end]])
        state = absorb_block(state, block, mx.array(VALUES[start:end])[:, None])
        maximum, y = state.maximum.item(), 66 + 84 * step
        shrink = mx.exp(mx.array(before - maximum)).item()
        first, last = start, min(end, len(SCORES)) - 1
        average = weighted_average(state).item()
        keys = f"key {last}" if first == last else f"keys {first} and {last}"
        parts.append(
            bars(8, y, end) + f'<text x="136" y="{y - 42}" font-weight="600">block {step}: {keys}</text>'
            f'<text x="136" y="{y - 26}">maximum {before:g} &#8594; {maximum:g}</text>'
            f'<text x="136" y="{y - 10}">'
            f"old sums &#215; e^({before:g} &#8722; {maximum:g}) = {shrink:.3f}</text>"
            f'<text x="136" y="{y + 6}">sum {state.total.item():.3f}, average {average:.2f}</text>'
        )
    print(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 256" fill="currentColor" font-size="11" '
        'role="img">'
        "<title>A softmax in pieces</title>"
        "<desc>Scores 1, 3, 5, 2, 6 in blocks of two. After each block: the maximum so far, the factor by "
        "which the old sums shrink, the sum and the average of the values.</desc>"
        f"{''.join(parts).replace('-inf', '&#8722;&#8734;')}</svg>"
    )


if __name__ == "__main__":
    main()
