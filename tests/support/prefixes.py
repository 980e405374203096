"""What the tests of prefix caching share: hash functions that collide, lives by hand, two plain oracles."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import pytest

from tests.support.budget import Row, rows_of
from tests.support.check import check_equal
from tests.support.schedules import check_blocks
from tiny_llm import BlockManager, PrefixCachingBlockManager, Scheduler, SchedulerOutput, Sequence
from tiny_llm.scheduling.block_hashes import chain_hash

HASHES: dict[str, Callable[[int, tuple[int, ...]], int]] = {
    "chain": chain_hash,
    "constant": lambda parent, token_ids: 7,
    "one bit": lambda parent, token_ids: (parent + sum(token_ids)) % 2,
    "block alone": lambda parent, token_ids: hash(token_ids),
    "no order": lambda parent, token_ids: parent + sum(token_ids),
}
"""From the reference's own to those that say nothing."""


def sequence_of(tokens: Items[int], id: int = 0, computed: int = 0, most: int | None = None) -> Sequence:
    """A sequence with this prompt, some of it computed."""
    sequence = Sequence(id, tokens, max_num_tokens=most)
    sequence.num_computed_tokens = computed
    return sequence


def manager(num_blocks: int = 11, block_size: int = 3, hash_name: str = "chain") -> PrefixCachingBlockManager:
    return PrefixCachingBlockManager(num_blocks, block_size, hash_function=HASHES[hash_name])


def taken(blocks: PrefixCachingBlockManager, num_blocks: int) -> list[int]:
    """Blocks out of the free list that one table holds, as day 3.2 does it."""
    found = [BlockManager.take(blocks) for _ in range(num_blocks)]
    for block in found:
        BlockManager.hold(blocks, block)
    return found


def know(blocks: PrefixCachingBlockManager, tokens: Items[int], block_ids: Items[int]) -> None:
    """Register blocks for the prefixes of these tokens, as task 5 does it."""
    for prefix, block in zip(blocks.prefixes.of(Sequence(99, tokens)), block_ids, strict=True):
        blocks.block_of[prefix] = block
        blocks.prefix_of[block] = prefix


def live(blocks: PrefixCachingBlockManager, tokens: Items[int], id: int = 0) -> Sequence:
    """Admit a sequence and compute all of it in one step; it still holds its blocks."""
    sequence = sequence_of(tokens, id)
    start = blocks.find_prefix(sequence)
    if not blocks.allocate(sequence, sequence.num_tokens - start):
        pytest.fail(f"sequence {id} with {len(tokens)} tokens was not admitted")
    sequence.num_computed_tokens = sequence.num_tokens
    return sequence


def cached_tokens(blocks: PrefixCachingBlockManager) -> list[tuple[int, ...]]:
    """All tokens up to the end of each cached block, in the order of eviction."""
    found = []
    for block in blocks.cached_blocks:
        tokens: tuple[int, ...] = ()
        prefix = blocks.prefix_of[block]
        while prefix is not None:
            tokens = prefix.token_ids + tokens
            prefix = prefix.parent
        found.append(tokens)
    return found


@dataclass
class PlainCache:
    """The same in tuples of tokens: no hash, no block ids, no chain.

    `cached` are the contents of blocks that nobody holds, in the order of eviction; `held` counts the holders
    of those that are registered; `lives` has the contents that each holds of these, and how many blocks no
    one else can find.
    """

    num_blocks: int
    block_size: int
    cached: list[tuple[int, ...]] = field(default_factory=list)
    held: dict[tuple[int, ...], int] = field(default_factory=dict)
    lives: dict[int, tuple[list[tuple[int, ...]], int]] = field(default_factory=dict)

    def contents(self, tokens: tuple[int, ...]) -> list[tuple[int, ...]]:
        ends = range(self.block_size, len(tokens) + 1, self.block_size)
        return [tokens[:end] for end in ends]

    def shared(self, tokens: tuple[int, ...]) -> list[tuple[int, ...]]:
        row = []
        for content in self.contents(tokens):
            if content not in self.cached and content not in self.held:
                break
            row.append(content)
        return row

    def begin(self, id: int, tokens: tuple[int, ...]) -> bool:
        """Admit, and register what no one else has registered."""
        shared = self.shared(tokens)
        num_blocks = -(-len(tokens) // self.block_size)
        num_private = sum(number for _, number in self.lives.values())
        left = [content for content in self.cached if content not in shared]
        num_free = self.num_blocks - len(self.held) - num_private - len(self.cached)
        num_new = num_blocks - len(shared)
        if num_new > num_free + len(left):
            return False
        self.cached = left[max(0, num_new - num_free) :]
        own = [
            content
            for content in self.contents(tokens)[len(shared) :]
            if content not in self.held and content not in self.cached
        ]
        for content in [*shared, *own]:
            self.held[content] = self.held.get(content, 0) + 1
        self.lives[id] = ([*shared, *own], num_new - len(own))
        return True

    def end(self, id: int) -> None:
        """Let go of all, last first."""
        for content in reversed(self.lives.pop(id)[0]):
            self.held[content] -= 1
            if self.held[content] == 0:
                del self.held[content]
                self.cached.append(content)


@dataclass
class PaperPool:
    """In place of keys and values each slot holds the tokens that they would have been computed from."""

    blocks: BlockManager
    slots: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def compute(self, output: SchedulerOutput) -> None:
        """Store what the step computes, then look at every slot that its tokens attend to."""
        for entry in output.entries:
            tokens, table = tuple(entry.sequence.token_ids), self.blocks.tables[entry.sequence.id]
            for position in range(max(entry.start, table.num_stored_tokens), entry.end):
                self.slots[self.slot(table.block_ids, position)] = tokens[: position + 1]
        for entry in output.entries:
            tokens, table = tuple(entry.sequence.token_ids), self.blocks.tables[entry.sequence.id]
            for position in range(entry.end):
                held = self.slots.get(self.slot(table.block_ids, position))
                if held != tokens[: position + 1]:
                    pytest.fail(
                        f"sequence {entry.sequence.id} attends to position {position} of {list(tokens)} and "
                        f"finds what was computed from {held and list(held)}"
                    )

    def slot(self, block_ids: Items[int], position: int) -> int:
        size = self.blocks.block_size
        return block_ids[position // size] * size + position % size


@dataclass(frozen=True)
class Job:
    """A request on paper, and the steps before which it comes, is dropped or preempted."""

    prompt: tuple[int, ...]
    num_outputs: int
    arrival: int = 0
    dropped_at: int | None = None
    preempted_at: int | None = None


def next_token(tokens: Items[int]) -> int:
    """What a model would sample: it depends on all tokens, so equal prompts get equal answers."""
    return sum((place + 1) * token for place, token in enumerate(tokens)) % 3


def preempt_last(scheduler: Scheduler) -> None:
    """Take back what the last running sequence holds and let it wait, as day 3.5 does it."""
    sequence = scheduler.running.pop()
    scheduler.blocks.free(sequence)
    sequence.num_computed_tokens = 0
    scheduler.policy.add(sequence)


def serve(scheduler: Scheduler, blocks: PrefixCachingBlockManager, jobs: Items[Job]) -> list[list[Row]]:
    """Serve jobs to their ends and fail at the first slot that holds something else than it should.

    Also: all blocks are free, used or cached, and a hit is never longer than what was computed before, or is
    computed by entries before it in its step; where the pool never was full and no hash collides, it is not
    shorter than what must be registered by then: prompts, and answers that have ended.
    """
    pool, timeline, hits = PaperPool(blocks), [], 0
    computed: set[tuple[int, ...]] = set()
    registered: set[tuple[int, ...]] = set()
    is_exact = blocks.prefixes.hash_function is chain_hash
    sequences = [
        Sequence(id, job.prompt, max_num_tokens=len(job.prompt) + job.num_outputs)
        for id, job in enumerate(jobs)
    ]
    for step in range(2000):
        for sequence, job in zip(sequences, jobs, strict=True):
            if job.arrival == step:
                scheduler.add(sequence)
            elif job.dropped_at == step and sequence.id in scheduler.sequences:
                registered |= beginnings(sequence, sequence.num_computed_tokens)
                scheduler.remove(sequence.id)
            while job.preempted_at == step and sequence in scheduler.running:  # with all that came after it
                last = scheduler.running[-1]
                registered |= beginnings(last, last.num_computed_tokens)
                preempt_last(scheduler)
        before = set(map(id, scheduler.running))
        num_free = blocks.num_free_blocks
        output = scheduler.schedule()
        check_blocks(blocks)
        num_blocks = blocks.num_free_blocks + blocks.num_used_blocks + blocks.num_cached_blocks
        check_equal(num_blocks, blocks.num_blocks, "free, used and cached blocks together")
        is_exact = is_exact and (num_free > 0 and blocks.num_free_blocks > 0)
        for entry in output.entries:
            if id(entry.sequence) not in before:
                hits += entry.start
                most, least = (
                    longest_in(known, entry.sequence.token_ids, blocks.block_size)
                    for known in (computed, registered)
                )
                what = f"tokens that {entry.sequence.token_ids} need not have computed"
                if entry.start > most or (is_exact and entry.start < least):
                    check_equal(entry.start, most if entry.start > most else least, what)
            computed |= beginnings(entry.sequence, entry.end)
            registered |= beginnings(entry.sequence, min(entry.end, entry.sequence.num_prompt_tokens))
        pool.compute(output)
        scheduler.complete(
            output, {each.sequence.id: next_token(each.sequence.token_ids) for each in output.final}
        )
        for entry in output.final:
            if len(entry.sequence.generated_ids) == jobs[entry.sequence.id].num_outputs:
                registered |= beginnings(entry.sequence, entry.sequence.num_computed_tokens)
                scheduler.remove(entry.sequence.id)
        timeline.append(rows_of(output))
        if not scheduler.has_work and all(job.arrival <= step for job in jobs):
            break
    else:
        pytest.fail("there is still work after 2000 steps")
    check_equal(blocks.num_used_blocks, 0, "used blocks when all have ended")
    check_equal(blocks.num_hit_tokens, hits, "num_hit_tokens, for all that the schedule left out")
    return timeline


def beginnings(sequence: Sequence, num_tokens: int) -> set[tuple[int, ...]]:
    """The first token, the first two, and so on."""
    return {tuple(sequence.token_ids[:end]) for end in range(1, num_tokens + 1)}


def longest_in(known: set[tuple[int, ...]], tokens: Items[int], block_size: int) -> int:
    """Of the first tokens those in full blocks that are known, but not the last one."""
    end = 0
    while end + block_size <= len(tokens) and tuple(tokens[: end + block_size]) in known:
        end += block_size
    return min(end, len(tokens) - 1)
