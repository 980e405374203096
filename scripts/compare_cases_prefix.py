"""The inputs of `pdm run compare` for prefix caching: week 3, day 4."""

from types import ModuleType
from typing import TYPE_CHECKING

from scripts.compare_cases import case, module
from scripts.compare_trees import Tree

if TYPE_CHECKING:
    from tiny_llm_ref import PrefixCachingBlockManager, Sequence
    from tiny_llm_ref.serving.prefix import Prefix

NUM_BLOCKS, BLOCK_SIZE = 300, 16
MANAGER = "serving.prefix_cache.PrefixCachingBlockManager"


def prompt(number: int, length: int = 150) -> list[int]:
    """Prompts of which each two have a third, a half or nothing in common."""
    return [number % 2] * 48 + [number % 4] * 32 + list(range(number, number + length - 80))


def manager(tiny: ModuleType, num_blocks: int = NUM_BLOCKS) -> "PrefixCachingBlockManager":
    """Blocks that nobody holds."""
    blocks: PrefixCachingBlockManager = tiny.PrefixCachingBlockManager(num_blocks, BLOCK_SIZE)
    return blocks


def lives(blocks: "PrefixCachingBlockManager", tiny: ModuleType, count: int = 40) -> list[Tree]:
    """So many that come, are computed and go, four of them at a time."""
    alive: list[Sequence] = []
    seen: list[Tree] = []
    for number in range(count):
        sequence = tiny.Sequence(number, prompt(number, 90 + number))
        start = blocks.find_prefix(sequence)
        is_met = blocks.allocate(sequence, sequence.num_tokens - start)
        seen.append([start, is_met, list(blocks.tables[number].block_ids) if is_met else []])
        if is_met:
            sequence.num_computed_tokens = sequence.num_tokens
            alive.append(sequence)
        if len(alive) == 4:
            blocks.free(alive.pop(number % 4))
    return seen


def plain(prefix: "Prefix | None") -> Tree:
    """A prefix as its tokens and hashes, last block first."""
    return [] if prefix is None else [[list(prefix.token_ids), prefix.hash], plain(prefix.parent)]


@case("serving.prefix.Prefixes.child")
def children(tiny: ModuleType) -> Tree:
    """60 of a 1-bit hash."""
    prefixes = module(tiny, "serving.prefix").Prefixes(2, lambda parent, ids: (parent + sum(ids)) % 2)
    made = [prefixes.child(None, (1, 2))]
    for number in range(60):
        made.append(prefixes.child(made[number // 2], (number % 3, number % 5)))
    again = prefixes.child(None, (1, 2))
    return [again is made[0], [plain(each) for each in made]]


@case("serving.prefix.Prefixes.of")
def chains(tiny: ModuleType) -> Tree:
    """40 prompts."""
    prefixes = module(tiny, "serving.prefix").Prefixes(BLOCK_SIZE)
    return [[plain(each) for each in prefixes.of(tiny.Sequence(n, prompt(n)))] for n in range(40)]


@case(f"{MANAGER}.find_shared_blocks")
def found(tiny: ModuleType) -> Tree:
    """40 that begin alike."""
    blocks = manager(tiny)
    lives(blocks, tiny)
    return [list(blocks.find_shared_blocks(tiny.Sequence(100 + n, prompt(n)))) for n in range(40)]


@case(f"{MANAGER}.num_cached_blocks")
@case(f"{MANAGER}.num_available_blocks")
@case(f"{MANAGER}.hold")
@case(f"{MANAGER}.put_back")
@case(f"{MANAGER}.register")
@case(f"{MANAGER}.allocate")
@case(f"{MANAGER}.free")
def kept(tiny: ModuleType) -> Tree:
    """40 lives, room."""
    blocks = manager(tiny)
    seen = lives(blocks, tiny)
    return [seen, blocks.num_cached_blocks, blocks.num_available_blocks, list(blocks.cached_blocks)]


@case(f"{MANAGER}.evict")
@case(f"{MANAGER}.take")
def evicted(tiny: ModuleType) -> Tree:
    """40 lives in 40 blocks."""
    blocks = manager(tiny, num_blocks=40)
    return [lives(blocks, tiny), list(blocks.cached_blocks)]


@case(f"{MANAGER}.forget_contents")
def forgotten(tiny: ModuleType) -> Tree:
    """After 40 lives."""
    blocks = manager(tiny)
    lives(blocks, tiny)
    blocks.forget_contents()
    return [blocks.num_cached_blocks, blocks.num_free_blocks, len(blocks.block_of)]


@case(f"{MANAGER}.admit")
@case(f"{MANAGER}.hit_rate")
def hits(tiny: ModuleType) -> Tree:
    """Counted over 40 lives."""
    blocks = manager(tiny)
    lives(blocks, tiny)
    return [blocks.num_hit_tokens, blocks.num_admitted_tokens, blocks.hit_rate]
