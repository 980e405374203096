"""What keys and values take in memory: reserved, doubled, in slots and in blocks; and how many requests fit.

pdm run bench blocks --slot-tokens 2048 --requests 100
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import mlx.core as mx
import numpy as np
import typer

from benches.rounds import written
from kernel_runtime.checkpoint import read_json
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors
from scripts.hardware.memory import memory_use
from tiny_llm import (
    BatchingKvCache,
    BlockManager,
    CostModel,
    ModelConfig,
    PagedKvCache,
    PagedKvPool,
    SchedulerConfig,
    Sequence,
    SimulatedRequest,
    Simulator,
    TinyKvFullCache,
)
from tiny_llm.model.kv_cache import TinyKvCache
from tiny_llm.model.registry import find_model_type
from tiny_llm.model.roofline import cache_bytes_per_token

MB = 1e6
LONGEST_PROMPT = 640
MAX_TOKENS = (64, 128, 256)
NUM_HELD = 12  # requests whose keys and values are stored for the first table
MOST_TOKENS, MOST_SEQUENCES = 512, 256  # of a step of the second table
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Requests = Annotated[int, typer.Option(min=1, help="Requests of the second table, all there at the start.")]
SlotTokens = Annotated[
    int, typer.Option(min=LONGEST_PROMPT + max(MAX_TOKENS), help="Tokens of a dense slot.")
]
Slots = Annotated[int, typer.Option(min=1, help="Dense slots: the memory of the second table.")]
BlockSizes = Annotated[list[int], typer.Option("--block-size", min=1, help="May be repeated.")]
Seed = Annotated[int, typer.Option(help="Of the lengths.")]


@dataclass(frozen=True)
class Lengths:
    """Tokens of a request: its prompt, its answer, and the most that the answer may have."""

    prompt: int
    answer: int
    max_tokens: int

    @property
    def half_way(self) -> int:
        """Tokens that are stored when half of the answer is there."""
        return self.prompt + self.answer // 2


def main(
    model: Model = SHIPPED_MODEL,
    requests: Requests = 200,
    slot_tokens: SlotTokens = 1024,
    slots: Slots = 16,
    block_size: BlockSizes = [1, 4, 16, 64, 256],  # noqa: B006 - typer copies it
    seed: Seed = 0,
) -> None:
    """Store the keys and values of the same requests by each means, then serve more within the same bytes.

    Example: pdm run bench blocks --slot-tokens 2048 --slots 8
    """
    with usage_errors():
        config_dict = read_json(resolve_checkpoint(model) / "config.json")
        config = find_model_type(config_dict).read_config(config_dict)
        lengths = draw_lengths(max(requests, NUM_HELD), seed)
        held = lengths[:NUM_HELD]
        prompts, answers = ([getattr(each, name) for each in lengths] for name in ("prompt", "answer"))
        token_bytes = cache_bytes_per_token(config, mx.float32)
        print(f"{model}: a token leaves {token_bytes:,} bytes of keys and values, in float32")
        print(
            f"prompts of {min(prompts)} to {max(prompts)} tokens, half of them below {np.median(prompts):.0f}"
        )
        print(f"answers of {min(answers)} to {max(answers)} tokens, at most 64, 128 or 256 allowed")
        print()
        print_held(config, held, slot_tokens, block_size)
        print()
        print_served(lengths[:requests], slots, slot_tokens, token_bytes, block_size)


def draw_lengths(count: int, seed: int) -> list[Lengths]:
    """Prompts whose logarithms are normal, answers that use a quarter to all of what they are allowed."""
    rng = np.random.default_rng(seed)
    prompts = np.exp(rng.normal(np.log(120), 0.9, count)).clip(8, LONGEST_PROMPT).astype(int)
    allowed = rng.choice(MAX_TOKENS, count)
    answers = np.maximum(1, allowed * rng.uniform(0.25, 1, count)).astype(int)
    return [Lengths(*map(int, each)) for each in zip(prompts, answers, allowed, strict=True)]


def print_held(config: ModelConfig, held: list[Lengths], slot_tokens: int, block_sizes: list[int]) -> None:
    """The first table: bytes that MLX holds for the same tokens."""
    in_use = sum(each.half_way for each in held) * cache_bytes_per_token(config, mx.float32)
    print(f"{len(held)} requests, half of each answer there: {in_use / MB:.1f} MB of keys and values")
    print(f"{'':26}{'MB held':>10}{'in use':>9}{'MB at most':>13}")
    ways: dict[str, Callable[[], object]] = {
        f"{slot_tokens} tokens reserved": partial(reserved, config, held, slot_tokens),
        "each cache doubles": partial(doubled, config, held),
        "slots of a batch": partial(batched, config, held),
    }
    for size in block_sizes:
        ways[f"blocks of {size}"] = partial(paged, config, held, size)
    held_by = written({name: partial(bytes_held, make) for name, make in ways.items()})
    for name, (now, most) in held_by.items():
        print(f"{name:26}{now / MB:10.1f}{in_use / now:9.0%}{most / MB:13.1f}")


def bytes_held(make: Callable[[], object]) -> tuple[int, int]:
    """Bytes of MLX's arrays once something is made, and the most while it was."""
    gc.collect()
    with memory_use(reuses_buffers=False) as memory:
        made = make()
    del made
    return memory.held, memory.peak


def entries(config: ModelConfig, L: int) -> mx.array:
    """Keys or values of L tokens of one layer: [1, H, L, D]."""
    return mx.zeros((1, config.num_key_value_heads, L, config.head_dim))


def fill(config: ModelConfig, cache: TinyKvCache, lengths: Lengths) -> None:
    """Store a prompt in one call, then half of the answer token by token."""
    for L in (lengths.prompt, *[1] * (lengths.answer // 2)):
        new = entries(config, L)
        cache.attend(new, new, new, lambda query, *_, **__: query)
        mx.eval(cache.state)


def reserved(config: ModelConfig, held: list[Lengths], slot_tokens: int) -> list[mx.array]:
    """Arrays for the longest request that is allowed, for each."""
    arrays = [entries(config, slot_tokens) for _ in range(2 * config.num_hidden_layers * len(held))]
    mx.eval(arrays)
    return arrays


def doubled(config: ModelConfig, held: list[Lengths]) -> list[TinyKvFullCache]:
    """A dense cache for each, which doubles when it is full."""
    caches = [TinyKvFullCache() for _ in range(config.num_hidden_layers * len(held))]
    for i, cache in enumerate(caches):
        fill(config, cache, held[i % len(held)])
    return caches


def batched(config: ModelConfig, held: list[Lengths]) -> list[BatchingKvCache]:
    """The slots of week 2: all as long as the longest."""
    layers = [BatchingKvCache(len(held)) for _ in range(config.num_hidden_layers)]
    for layer in layers:
        for slot, lengths in enumerate(held):
            cache = TinyKvFullCache()
            fill(config, cache, lengths)
            layer.add_request(cache, slot)
            mx.eval(layer.state)
    return layers


def paged(config: ModelConfig, held: list[Lengths], block_size: int) -> PagedKvPool:
    """A pool of as many blocks as are needed, without a reservation for what is to come."""
    num_blocks = sum(-(-each.half_way // block_size) for each in held)
    blocks = BlockManager(num_blocks, block_size, overcommit=True)
    pool = PagedKvPool(config.num_hidden_layers, num_blocks, block_size)
    for number, lengths in enumerate(held):
        sequence = Sequence(number, range(lengths.half_way))
        if not blocks.allocate(sequence, lengths.half_way):
            raise RuntimeError("the blocks were counted wrong")
        for layer in range(config.num_hidden_layers):
            fill(config, PagedKvCache(pool, layer, blocks.tables[number].block_ids), lengths)
    return pool


@dataclass
class Use:
    """Of each step with a request waiting: sequences that ran, and how the pool's slots were used."""

    running: list[int] = field(default_factory=list)
    stored: list[float] = field(default_factory=list)
    unfilled: list[float] = field(default_factory=list)
    reserved: list[float] = field(default_factory=list)

    def record(self, simulator: Simulator, blocks: BlockManager) -> None:
        """Note a step that was scheduled and computed."""
        entries = simulator.steps[-1].output.entries
        room = blocks.num_blocks * blocks.block_size
        stored = sum(entry.end for entry in entries)
        given = sum(blocks.num_blocks_for(entry.end) for entry in entries) * blocks.block_size
        claimed = sum(blocks.num_blocks_for(entry.sequence.max_num_tokens) for entry in entries)
        self.running.append(len(entries))
        self.stored.append(stored / room)
        self.unfilled.append((given - stored) / room)
        self.reserved.append((claimed * blocks.block_size - given) / room)


def serve(lengths: list[Lengths], blocks: BlockManager) -> tuple[Use, int]:
    """Requests that are all there at the start, by the engine's scheduler; how many steps they take."""
    simulator = Simulator(SchedulerConfig(MOST_TOKENS, MOST_SEQUENCES), CostModel(1.0, 0.0), blocks)
    for each in lengths:
        simulator.add(SimulatedRequest((0,) * each.prompt, each.answer, max_tokens=each.max_tokens))
    use = Use()
    while simulator.scheduler.has_work:
        is_full = len(simulator.scheduler.policy) > 0
        simulator.step()
        if is_full:
            use.record(simulator, blocks)
    return use, len(simulator.steps)


def print_served(
    lengths: list[Lengths], slots: int, slot_tokens: int, token_bytes: int, block_sizes: list[int]
) -> None:
    """The second table: the same requests within the same bytes."""
    num_tokens = slots * slot_tokens
    print(f"{len(lengths)} requests within {num_tokens * token_bytes / MB:.0f} MB, or {num_tokens:,} tokens,")
    print("each with room reserved for its prompt and longest answer; averages while requests are waiting:")
    print(f"{'':26}{'at once':>12}{'stored':>9}{'unfilled':>10}{'reserved':>10}{'free':>7}{'steps':>7}")
    ways = {f"slots of {slot_tokens}": BlockManager(slots, slot_tokens)}
    for size in block_sizes:
        ways[f"blocks of {size}"] = BlockManager(num_tokens // size, size)
    for name, blocks in ways.items():
        use, num_steps = serve(lengths, blocks)
        if not use.running:
            print(f"{name:26}{'all fit':>12}{'':36}{num_steps:7}")
            continue
        shares = [float(np.mean(each)) for each in (use.stored, use.unfilled, use.reserved)]
        at_once = f"{np.mean(use.running):.1f} to {max(use.running)}"
        stored, unfilled, reserved = (f"{share:.0%}" for share in shares)
        free = f"{1 - sum(shares):.0%}"
        print(f"{name:26}{at_once:>12}{stored:>9}{unfilled:>10}{reserved:>10}{free:>7}{num_steps:7}")
