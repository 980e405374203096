"""Drives an Engine and notes what each step computed, for whom and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from scripts.run.run_log import PhaseEvent, RunLog

if TYPE_CHECKING:
    from tiny_llm import Engine, EngineStep, GenerationResult, SamplingParams
    from tiny_llm.engine.engine_request import EngineRequest


@dataclass(frozen=True)
class PoolEvent:
    """What a pool of blocks did to a request in a step: a prefix found in it, or a preemption.

    The tokens need not be computed after a hit, and must be computed again after a preemption.
    """

    step: int
    kind: Literal["hit", "preemption"]
    time_s: float
    request: int
    tokens: int


@dataclass(frozen=True)
class BlockCounts:
    """Blocks that a sequence holds, unused ones kept for their content, and all others."""

    used: int
    cached: int
    free: int


@runtime_checkable
class CountedBlocks(Protocol):
    """Blocks of a pool, of either package."""

    num_blocks: int
    block_size: int

    @property
    def num_used_blocks(self) -> int:
        """Blocks that a sequence holds."""


class EngineRecorder(RunLog):
    """A run of an engine, step by step; a step's chunks and decodes all last as long as the step.

    Args:
        engine: fresh, and stepped by nothing else.
        clock: seconds, from any start.

    Attributes:
        steps: what each step computed, and its seconds.
        pool_events: hits and preemptions, where the engine has blocks.
        block_counts: after each step, where the engine has blocks.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] | None = None) -> None:
        super().__init__(clock)
        self.generator = engine
        self.requests: list[EngineRequest] = []  # readable when the engine has forgotten them
        self.steps: list[tuple[EngineStep, float]] = []
        self.pool_events: list[PoolEvent] = []
        self.block_counts: list[BlockCounts] = []

    @property
    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return self.generator.has_unfinished_requests

    @property
    def prompts(self) -> list[list[int]]:
        """The prompt of each request."""
        sequences = [request.sequence for request in self.requests]
        return [sequence.token_ids[: sequence.num_prompt_tokens] for sequence in sequences]

    @property
    def num_hit_tokens(self) -> int:
        """Tokens that were found in blocks and not computed."""
        return sum(event.tokens for event in self.pool_events if event.kind == "hit")

    @property
    def num_preemptions(self) -> int:
        """How often a request lost what was computed."""
        return sum(event.kind == "preemption" for event in self.pool_events)

    @property
    def blocks(self) -> CountedBlocks | None:
        """The engine's pool, if it has one."""
        blocks = self.generator.scheduler.blocks
        return blocks if isinstance(blocks, CountedBlocks) else None

    def counts_now(self) -> BlockCounts:
        """How many blocks are held; all 0 without a pool."""
        if self.blocks is None:
            return BlockCounts(0, 0, 0)
        num_used, num_cached = self.blocks.num_used_blocks, getattr(self.blocks, "num_cached_blocks", 0)
        return BlockCounts(num_used, num_cached, self.blocks.num_blocks - num_used - num_cached)

    def submit(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        arrival: float | None = None,
    ) -> EngineRequest:
        """Add a prompt and note its arrival, now unless given; errors as for the engine."""
        request_id = self.generator.add_request(prompt, params)
        request = self.generator.requests[request_id]
        self.requests.append(request)
        self.record_arrival(request_id, arrival)
        return request

    def step(self) -> list[GenerationResult]:
        """One step of the engine; the requests that finished in it."""
        lengths = {index: len(request.token_ids) for index, request in self.generator.requests.items()}
        before = {
            sequence.id: (sequence.num_computed_tokens, sequence.num_preemptions)
            for sequence in self.generator.scheduler.sequences.values()
        }
        start = self.seconds
        step = self.generator.step()
        end = self.seconds
        self._record_pool(step, before, start)
        self._record_calls(step, lengths, start, end)
        self.steps.append((step, end - start))
        self.num_steps += 1
        for result in step.finished:
            self.record_end(result.prompt_idx)
        return list(step.finished)

    def _record_calls(self, step: EngineStep, lengths: dict[int, int], start: float, end: float) -> None:
        """An event for each chunk, and one for all that decode."""
        sampled = {
            index for index in step.sampled if len(self.requests[index].token_ids) > lengths.get(index, 0)
        }
        chunks = [[entry] for entry in step.scheduled.entries if entry.is_prefill]
        decodes = [entry for entry in step.scheduled.entries if not entry.is_prefill]
        for entries in [*chunks, *([decodes] if decodes else [])]:
            ids = [entry.sequence.id for entry in entries]
            event = PhaseEvent(
                step=self.num_steps,
                phase="prefill" if entries[0].is_prefill else "decode",
                start=start,
                end=end,
                num_tokens={entry.sequence.id: entry.num_tokens for entry in entries},
                starts={entry.sequence.id: entry.start for entry in entries},
                sampled=tuple(index for index in ids if index in sampled),
            )
            self.record_event(event)

    def _record_pool(self, step: EngineStep, before: dict[int, tuple[int, int]], start: float) -> None:
        """Who was preempted, who found a prefix, and how many blocks are left; `before` by id."""
        if self.blocks is None:
            return
        admitted_at = {entry.sequence.id: entry.start for entry in step.scheduled.entries}
        for index, (num_computed, num_preemptions) in before.items():
            was_preempted = self.requests[index].sequence.num_preemptions > num_preemptions
            if was_preempted:
                self.pool_events.append(PoolEvent(self.num_steps, "preemption", start, index, num_computed))
            num_found = admitted_at.get(index, 0)
            if num_found and (was_preempted or num_computed == 0):
                self.pool_events.append(PoolEvent(self.num_steps, "hit", start, index, num_found))
        self.block_counts.append(self.counts_now())
