"""A decode whose keys are shared out, and how the parts are joined, printed as an SVG."""

from tiny_llm_ref.ops.flash_attention import absorb_block, empty_state

# isort: split
import mlx.core as mx  # after the package, which puts a fast BLAS in place before MLX is loaded

ORANGE = "#d97a1f"
SCORES, VALUES = [1.0, 3.0, 5.0, 2.0, 6.0, 0.5], [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
PER_PART, WIDTH = 2, 108


def part(number: int) -> tuple[float, float, float]:
    """Maximum, sum and weighted values of one part of the keys."""
    keys = slice(number * PER_PART, (number + 1) * PER_PART)
    scores, values = mx.array([SCORES[keys]]), mx.array(VALUES[keys])[:, None]
    state = absorb_block(empty_state((1,), 1), scores, values)
    return state.maximum.item(), state.total.item(), state.weighted.item()


def column(number: int) -> str:
    """A part: its keys, who reads them, what is left."""
    maximum, total, weighted = part(number)
    x = 8 + 118 * number
    first = number * PER_PART
    return (
        f'<rect x="{x}" y="26" width="{WIDTH}" height="30" rx="3" fill="{ORANGE}" fill-opacity="0.5"/>'
        f'<text x="{x + WIDTH / 2}" y="45" text-anchor="middle">keys {first} to {first + PER_PART - 1}</text>'
        f'<path d="M{x + WIDTH / 2} 60v14m-4 -5l4 6l4 -6" fill="none" stroke="currentColor"/>'
        f'<rect x="{x}" y="80" width="{WIDTH}" height="70" rx="3" fill-opacity="0.08"/>'
        f'<text x="{x + 8}" y="97" font-weight="600">core {number}</text>'
        f'<text x="{x + 8}" y="112">m = {maximum:g}</text>'
        f'<text x="{x + 8}" y="127">&#8467; = {total:.3f}</text>'
        f'<text x="{x + 8}" y="142">a = {weighted:.2f}</text>'
        f'<path d="M{x + WIDTH / 2} 154L{180 + 40 * (number - 1)} 186" fill="none" stroke="currentColor"/>'
    )


def main() -> None:
    """Print the figure."""
    parts = [part(number) for number in range(3)]
    maximum = max(m for m, _, _ in parts)
    shrinks = [mx.exp(mx.array(m - maximum)).item() for m, _, _ in parts]
    total = sum(f * each for f, (_, each, _) in zip(shrinks, parts, strict=True))
    weighted = sum(f * each for f, (_, _, each) in zip(shrinks, parts, strict=True))
    factors = ", ".join(f"{f:.3f}" for f in shrinks)
    print(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 282" fill="currentColor" font-size="11" '
        'role="img">'
        "<title>A decode that shares out the keys</title>"
        "<desc>Six keys in three parts. Each core keeps the maximum m, the sum l and the weighted values a "
        "of its part. Joined, each part shrinks to the common maximum, the sums are added, and a over l is "
        "the attention.</desc>"
        '<text x="8" y="16" font-weight="600">One query, its keys and values in three parts</text>'
        f"{''.join(column(number) for number in range(3))}"
        '<rect x="8" y="188" width="344" height="86" rx="3" fill-opacity="0.08"/>'
        '<text x="16" y="206" font-weight="600">joined</text>'
        f'<text x="16" y="222">m = {maximum:g}; the parts shrink by {factors}</text>'
        f'<text x="16" y="238">&#8467; = {total:.3f}, a = {weighted:.2f}</text>'
        f'<text x="16" y="262" font-weight="600">attention = a / &#8467; = {weighted / total:.3f}</text>'
        "</svg>"
    )


if __name__ == "__main__":
    main()
