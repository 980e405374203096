"""A given engine that prepares the next step while the device computes this one."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from ..engine import Engine, EngineStep
from ..forward_batch import ForwardBatch
from ..model_runner import ModelRunner
from ..prefix_cache import PrefixCachingBlockManager
from .sampling_batch import Sampled, StepSamples, read_samples
from .scheduler_output import ScheduledTokens, SchedulerOutput

UNREAD = -1
"""Stands for a sampled token whose id is still known only to the device."""


@dataclass(frozen=True)
class StepUnderWay:
    """A step whose graph has been built. Its samples are on the device, or will be."""

    output: SchedulerOutput
    sampled: Items[Sampled]


NO_STEP = StepUnderWay(SchedulerOutput(()), ())


class OverlappingEngine(Engine):
    """An engine with the same answers as `Engine` that prepares each step during the previous one.

    A call of `step` schedules step t + 1 and builds its graph while the device computes step t. It then
    reads the samples of step t, hands step t + 1 to the device, and returns step t. The samples of step t
    enter step t + 1 on the device, so the scheduler learns how many tokens were sampled, but not their ids.

    An answer that reaches its length in step t is left out of step t + 1. If an end-of-text id, a stop string
    or an abort ends it, step t + 1 computes one more token, which is discarded. Requests join one step later
    than with `Engine`. Penalties and grammars need the ids themselves, so if step t samples for a request
    with one of them, nothing is prepared. Without a pool, this is an `Engine` like any other.

    Arguments, attributes and errors are those of `Engine`.
    """

    _under_way: StepUnderWay | None = None
    _dispatched_at = 0.0

    def step(self) -> EngineStep:
        """Return what one step computed, with the next one under way.

        Raises:
            ValueError: as for `Engine`.
        """
        if self.is_stepping or not isinstance(self.runner, ModelRunner):
            return super().step()
        with self._closed_on_error(), self.mid_step():
            current = self._under_way
            if current is None or not any(
                entry.sequence.id in self.requests for entry in current.output.entries
            ):
                current = self._prepare(self.runner, None)
                self._dispatch(self.runner, current)
            self._note_unread(current.output)
            is_needed = self._needs_tokens(current.output)
            following = NO_STEP if is_needed else self._prepare(self.runner, current)
            if not current.sampled:
                mx.synchronize()  # without samples, no read waits for the step
            samples = read_samples(current.sampled)
            self.scheduler.policy.record(current.output, self._clock() - self._dispatched_at)
            self._dispatch(self.runner, following)
            step = self._accept(current.output, samples)
            return self.without_aborted(step) if self.aborted_in_step else step

    def close(self) -> None:
        """Do what `Engine` does, and drop the step under way."""
        self._under_way = None
        super().close()

    def _prepare(self, runner: ModelRunner, before: StepUnderWay | None) -> StepUnderWay:
        """Schedule a step and build its graph. It may need tokens that the previous step samples."""
        output = self.scheduler.schedule()
        if not output.entries:
            return StepUnderWay(output, ())
        batch = runner.batch_of(output)
        if before is not None and before.sampled:
            batch = with_unread_tokens(batch, output.entries, before.sampled[0])
        params = {id: self.requests[id].params for id in output.final_ids}
        return StepUnderWay(output, runner.compute(batch, output.final, params))

    def _dispatch(self, runner: ModelRunner, step: StepUnderWay) -> None:
        """Let the device start the step, without waiting for it.

        The previous step must have ended. While it still reads the pool, MLX would copy the whole pool
        instead of writing in place.
        """
        self._under_way = step if step.output.entries else None
        mx.async_eval([each.arrays for each in step.sampled], runner.pool.state)  # type: ignore[no-untyped-call]
        self._dispatched_at = self._clock()

    def _needs_tokens(self, output: SchedulerOutput) -> bool:
        """Whether the tokens that a step samples must be known before the next one is prepared."""
        requests = [self.requests[id] for id in output.final_ids if id in self.requests]
        return any(request.params.has_penalties or request.constraint is not None for request in requests)

    def _note_unread(self, output: SchedulerOutput) -> None:
        """Count a step's tokens before their ids are known, and remove sequences that got their last one."""
        self.scheduler.complete(output, dict.fromkeys(output.final_ids, UNREAD))
        for sequence in [entry.sequence for entry in output.final]:
            num_generated = sequence.num_tokens - sequence.num_prompt_tokens
            request = self.requests.get(sequence.id)
            if request is not None and num_generated >= request.max_tokens:
                self.scheduler.remove(sequence.id)

    def _accept(self, output: SchedulerOutput, samples: StepSamples) -> EngineStep:
        """Give each request its token, except those that ended or were aborted before the step began."""
        entries = [entry for entry in output.final if entry.sequence.id in self.requests]
        sampled = {entry.sequence.id: samples.token_ids[entry.sequence.id] for entry in entries}
        logprobs = {id: samples.logprobs[id] for id in sampled.keys() & samples.logprobs.keys()}
        finished = []
        for entry in entries:
            id = entry.sequence.id
            self._write_token(entry, sampled[id])
            self.requests[id].accept(sampled[id], logprobs.get(id))
            if self.requests[id].is_done:
                finished.append(self.requests.pop(id).result())
                self.runner.release(id)
                if id in self.scheduler.sequences:
                    self.scheduler.remove(id)
        return EngineStep(output, sampled, tuple(finished), logprobs)

    def _write_token(self, entry: ScheduledTokens, token: int) -> None:
        """Replace a token's placeholder by its id, and forget the prefixes that contain the placeholder."""
        entry.sequence.token_ids[entry.end] = token
        blocks = self.scheduler.blocks
        if isinstance(blocks, PrefixCachingBlockManager):
            chain = blocks.prefixes.chains.get(entry.sequence, [])
            del chain[entry.end // blocks.block_size :]


def with_unread_tokens(
    batch: ForwardBatch, entries: Items[ScheduledTokens], sampled: Sampled
) -> ForwardBatch:
    """Return the batch of some entries, with each unread token taken from the samples on the device."""
    num_tokens = len(batch.positions)
    row_of = {entry.sequence.id: row for row, entry in enumerate(sampled.entries)}
    sources = np.arange(num_tokens)
    end = 0
    for entry in entries:
        end += entry.num_tokens
        if entry.sequence.token_ids[entry.end - 1] == UNREAD:
            sources[end - 1] = num_tokens + row_of[entry.sequence.id]
    known_and_unread = mx.concatenate([batch.token_ids[:, 0], sampled.token_ids.astype(mx.int32)])
    return replace(batch, token_ids=known_and_unread[mx.array(sources)][:, None])
