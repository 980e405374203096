"""Codes of 4 and of 3 bits in their words, and a row of weights in groups, printed as an SVG."""

from tiny_llm_ref.ops.packing import pack

# isort: split
import mlx.core as mx  # after the package, which puts a fast BLAS in place before MLX is loaded

ORANGE = "#d97a1f"


def box(x: float, y: float, width: float, text: str, look: str = 'fill-opacity="0.08"') -> str:
    """A field with a text in its middle."""
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width - 1:.1f}" height="22" rx="2" {look}/>'
        f'<text x="{x + width / 2 - 0.5:.1f}" y="{y + 15}" text-anchor="middle">{text}</text>'
    )


def four_bits() -> str:
    """One word and its codes, the first at the right, in the lowest bits."""
    codes = list(range(8))
    word = pack(mx.array(codes), 4).item()
    parts = [f'<text x="8" y="16" font-weight="600">4 bits: 0x{word:08x}, one word, 8 codes</text>']
    for place, digit in enumerate(f"{word:08x}"):
        code = 7 - place
        look = f'fill="{ORANGE}" fill-opacity="0.6"' if code == 0 else 'fill-opacity="0.08"'
        parts.append(box(8 + 43 * place, 24, 43, digit, look))
        parts.append(f'<text x="{29 + 43 * place}" y="59" text-anchor="middle">code {code}</text>')
    parts.append('<text x="8" y="74">bit 31</text><text x="352" y="74" text-anchor="end">bit 0</text>')
    return "".join(parts)


def three_bits() -> str:
    """The border between two words, the stream from left to right."""
    parts = ['<text x="8" y="104" font-weight="600">3 bits: one stream, lowest bit first</text>']
    width = 14  # of a bit
    for code in range(7, 13):
        look = f'fill="{ORANGE}" fill-opacity="0.6"' if code == 10 else 'fill-opacity="0.08"'
        parts.append(box(20 + (3 * code - 20) * width, 128, 3 * width, f"{code}", look))
    border = 20 + (32 - 20) * width
    parts.append(
        f'<path d="M{border} 120v38" stroke="currentColor" stroke-width="2"/>'
        f'<text x="{border - 5}" y="122" text-anchor="end">word 0</text>'
        f'<text x="{border + 5}" y="122">word 1</text>'
        f'<text x="{border}" y="170" text-anchor="middle">code 10: bits 30, 31 and 32</text>'
    )
    return "".join(parts)


def groups() -> str:
    """A row of 192 weights."""
    parts = ['<text x="8" y="204" font-weight="600">A row of 192 weights in groups of 64</text>']
    for group in range(3):
        x = 8 + 115 * group
        look = f'fill="{ORANGE}" fill-opacity="0.6"' if group == 0 else 'fill-opacity="0.08"'
        parts.append(box(x, 212, 115, f"{64 * group} to {64 * group + 63}", look))
        parts.append(f'<text x="{x + 57}" y="250" text-anchor="middle">scale {group}, bias {group}</text>')
    parts.append('<text x="8" y="272">weight i = scale[i // 64] &#215; code[i] + bias[i // 64]</text>')
    return "".join(parts)


def main() -> None:
    """Print the figure."""
    print(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 280" fill="currentColor" font-size="11" '
        'role="img">'
        "<title>Codes in words, and weights in groups</title>"
        "<desc>The word 0x76543210 holds the codes 0 to 7, the first in the lowest four bits. With 3 bits, "
        "code 10 takes the last two bits of word 0 and the first of word 1. A row of 192 weights has three "
        "groups of 64, each with a scale and a bias.</desc>"
        f"{four_bits()}{three_bits()}{groups()}</svg>"
    )


if __name__ == "__main__":
    main()
