"""What each of two ranks holds of a token in one layer, and what they exchange, printed as an SVG."""

from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx

from kernel_runtime.checkpoint import read_json, read_tensors
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from tiny_llm_ref import ModelConfig, shard_config, shard_tensors
from tiny_llm_ref.model.loader import Quantization, build_model
from tiny_llm_ref.model.sharded_loader import ShardedTensors

COLOURS = ("#d97a1f", "#3b82c4")
NUM_RANKS = len(COLOURS)
LEFT, TOP, BAR, CELL, GAP = 76, 22, 17, 14, 4  # a head is a cell wide
STEP, FAN, CROSSING = 18, 28, 38  # from a bar down to the next one: in a rank, to q, k and v, between ranks
POOL_WIDTH = 50


@dataclass
class CountingRanks:
    """Rank 0, which takes its own part for those of the others, and notes how many numbers it sends."""

    rank: int = 0
    size: int = NUM_RANKS
    sent: list[int] = field(default_factory=list)

    def all_sum(self, x: mx.array) -> mx.array:
        """Return x."""
        return x

    def all_gather(self, x: mx.array) -> mx.array:
        """Note the size of x."""
        self.sent.append(x.shape[-1])
        return mx.stack([x] * self.size)


@dataclass
class Drawing:
    """Bars of one token's vectors on every rank.

    Args:
        config: of one rank's part.
    """

    config: ModelConfig
    parts: list[str] = field(default_factory=list)
    y: float = TOP

    @property
    def num_heads(self) -> tuple[int, int, int]:
        """Heads of q, k and v on one rank."""
        return (self.config.num_attention_heads, *2 * (self.config.num_key_value_heads,))

    @property
    def starts(self) -> list[float]:
        """Where q, k and v begin in a lane."""
        widths = [NUM_RANKS * CELL * count + GAP for count in self.num_heads]
        return [0, widths[0], widths[0] + widths[1]]

    @property
    def lane(self) -> float:
        """Width of a rank's lane: that of q, k and v."""
        return self.starts[-1] + NUM_RANKS * CELL * self.num_heads[-1]

    def x_of(self, rank: int) -> float:
        """Where the lane of a rank begins."""
        return LEFT + rank * (self.lane + 10)

    def width(self, size: int) -> float:
        """Of so many numbers."""
        return CELL * size / self.config.head_dim

    def label(self, y: float, words: str) -> None:
        """Say on the left what is done."""
        self.parts.append(f'<text x="{LEFT - 8}" y="{y:g}" text-anchor="end">{words}</text>')

    def text(self, x: float, y: float, words: object) -> None:
        """Centre words at a place."""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="middle">{words}</text>')

    def cell(self, x: float, width: float, colour: str | None) -> None:
        """Draw a part of a bar; without a colour, one that the rank does not hold."""
        look = f'fill="{colour}" fill-opacity="0.5" stroke="{colour}"'
        if colour is None:
            look = 'fill="none" stroke="currentColor" stroke-opacity="0.4" stroke-dasharray="2 2"'
            x, width = x + 1, width - 2
        self.parts.append(f'<rect x="{x:g}" y="{self.y:g}" width="{width:g}" height="{BAR}" {look}/>')

    def ribbon(
        self, start: tuple[float, float], end: tuple[float, float], height: float, colour: str
    ) -> None:
        """Lead from a width of the bar above to a width of the bar below, which begins at `y`."""
        (a, b), (c, d), y, middle = start, end, self.y - height, self.y - height / 2
        self.parts.append(
            f'<path d="M{a:g} {y:g}C{a:g} {middle:g} {c:g} {middle:g} {c:g} {self.y:g}H{d:g}'
            f'C{d:g} {middle:g} {b:g} {middle:g} {b:g} {y:g}Z" fill="{colour}" '
            f'fill-opacity="{0.1 if colour == "currentColor" else 0.28}"/>'
        )

    def bars(self, part: int, is_whole: bool) -> None:
        """On every rank, draw its part of a vector or all parts, with how many numbers that is."""
        width = self.width(part)
        for rank in range(NUM_RANKS):
            left = self.x_of(rank)
            for i, colour in enumerate(COLOURS):
                self.cell(left + width * i, width, colour if is_whole or i == rank else None)
            if is_whole:
                self.text(left + NUM_RANKS * width + 16, self.y + 13, NUM_RANKS * part)
            else:
                self.text(left + width * (rank + 0.5), self.y + 13, part)

    def project(self, inputs: int, part: int, name: str) -> None:
        """Compute a part of the outputs on every rank, each from all inputs."""
        self.y += BAR + STEP
        for rank in range(NUM_RANKS):
            left, start = self.x_of(rank), self.x_of(rank) + self.width(part) * rank
            whole = left, left + self.width(NUM_RANKS * inputs)
            self.ribbon(whole, (start, start + self.width(part)), STEP, "currentColor")
        self.label(self.y + 13, name)
        self.bars(part, is_whole=False)

    def all_gather(self, part: int, name: str = "") -> None:
        """Give every rank the parts of all."""
        self.y += BAR + CROSSING
        width = self.width(part)
        for source, colour in enumerate(COLOURS):
            start = self.x_of(source) + width * source
            for rank in range(NUM_RANKS):
                end = self.x_of(rank) + width * source
                self.ribbon((start, start + width), (end, end + width), CROSSING, colour)
        self.label(self.y - CROSSING / 2 + 4, "all-gather")
        self.label(self.y + 13, name)
        self.bars(part, is_whole=True)

    def heads(self, inputs: int) -> None:
        """Draw the heads of q, k and v as cells, each on its rank."""
        self.y += BAR + FAN
        for rank, colour in enumerate(COLOURS):
            left = self.x_of(rank)
            whole = left, left + self.width(NUM_RANKS * inputs)
            for name, start, count in zip("qkv", self.starts, self.num_heads, strict=True):
                own = left + start + CELL * count * rank
                self.ribbon(whole, (own, own + CELL * count), FAN, "currentColor")
                for i in range(NUM_RANKS * count):
                    x, is_own = left + start + CELL * i, i // count == rank
                    self.cell(x, CELL, colour if is_own else None)
                    if is_own:
                        self.text(x + CELL / 2, self.y + 12, name)
        self.label(self.y + 13, f"heads of {self.config.head_dim}")

    def attention(self, part: int) -> None:
        """Lead q to the outputs of the heads, and k and v through the rank's part of the pool."""
        self.y += BAR + STEP
        for rank, colour in enumerate(COLOURS):
            left, right = self.x_of(rank), self.x_of(rank) + self.lane
            pool, middle = right - POOL_WIDTH, self.y + BAR / 2
            targets = left + CELL * self.num_heads[0] * rank, pool, right - CELL * self.num_heads[2]
            for start, count, target in zip(self.starts, self.num_heads, targets, strict=True):
                own, width = left + start + CELL * count * rank, CELL * count
                self.ribbon((own, own + width), (target, target + width), STEP, colour)
            self.parts.append(
                f'<rect x="{pool:g}" y="{self.y:g}" width="{POOL_WIDTH}" height="{BAR}" rx="5" '
                f'fill="{colour}" fill-opacity="0.15" stroke="{colour}"/>'
                f'<path d="M{pool - 2:g} {middle:g}h-8m3 -3l-3 3l3 3" fill="none" stroke="currentColor"/>'
            )
            self.text(pool + POOL_WIDTH / 2, self.y + 13, "KV pool")
        self.label(self.y + 13, "attention")
        self.bars(part, is_whole=False)


def sent_by_a_layer(path: Path, config: ModelConfig, quantization: Quantization | None) -> list[int]:
    """Numbers per token that a rank sends in each all-gather of a layer."""
    ranks = CountingRanks()
    own = shard_tensors(read_tensors(path), ranks.rank, ranks.size)
    model = build_model(config, ShardedTensors(own, quantization, None, ranks=ranks))
    model.layers[0](mx.zeros((1, 1, config.hidden_size)))
    return ranks.sent


def main() -> None:
    """Print the figure."""
    path = resolve_checkpoint(SHIPPED_MODEL)
    contents = shard_config(read_json(path / "config.json"), NUM_RANKS)
    config = ModelConfig.from_dict(contents)
    heads, output, hidden, down = sent_by_a_layer(path, config, Quantization.from_config(contents))
    drawing = Drawing(config)
    for rank in range(NUM_RANKS):
        drawing.text(drawing.x_of(rank) + drawing.lane / 2, 12, f"rank {rank}")
    drawing.label(drawing.y + 13, "x")
    drawing.bars(down, is_whole=True)
    drawing.heads(down)
    drawing.attention(heads)
    drawing.all_gather(heads)
    drawing.project(heads, output, "o_proj")
    drawing.all_gather(output, "+ x")
    drawing.project(output, hidden, "gate, up")
    drawing.all_gather(hidden)
    drawing.project(hidden, down, "down_proj")
    drawing.all_gather(down, "+ x")
    size = f"{drawing.x_of(NUM_RANKS - 1) + drawing.lane + 4:g} {drawing.y + BAR + 4:g}"
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" fill="currentColor" font-size="11" '
        'role="img">'
        f"<title>One layer on {NUM_RANKS} ranks: what each holds, and four all-gathers</title>"
        f"<desc>Per token, every rank has all {NUM_RANKS * down} numbers of x. A rank computes "
        f"{config.num_attention_heads} of the {NUM_RANKS * config.num_attention_heads} query heads, which "
        f"read its own part of the KV pool: {heads} of {NUM_RANKS * heads} numbers. Then it computes "
        f"{output} of the {NUM_RANKS * output} outputs of o_proj, {hidden} of the {NUM_RANKS * hidden} "
        f"numbers of gate and up, and {down} of the {NUM_RANKS * down} outputs of down_proj. After each of "
        "these four, an all-gather gives the parts of all ranks to every rank.</desc>"
        f"{''.join(drawing.parts)}</svg>"
    )


if __name__ == "__main__":
    main()
