"""Steps that overlap: the next one is prepared while the device computes this one."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from ..paging.forward_batch import ForwardBatch
from ..scheduling.prefix_cache import PrefixCachingBlockManager
from ..scheduling.scheduler import Scheduler
from ..scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from .dense_runner import Runner
from .engine_request import EngineRequest
from .execution import Computed, Execution
from .in_turn import InTurn
from .model_runner import ModelRunner
from .sampling_batch import Sampled, read_samples

UNREAD = -1
"""Stands for a sampled token whose id is still known only to the device."""
Requests = Mapping[int, EngineRequest]


@dataclass(frozen=True)
class StepUnderWay:
    """A step whose graph has been built. Its samples are on the device, or will be."""

    output: SchedulerOutput
    sampled: Items[Sampled]


NO_STEP = StepUnderWay(SchedulerOutput(()), ())


def overlapped(scheduler: Scheduler, runner: Runner, clock: Callable[[], float]) -> Execution:
    """Make an `Overlapped`; for a runner that has no pool, an `InTurn`."""
    if not isinstance(runner, ModelRunner):
        return InTurn(scheduler, runner, clock)
    return Overlapped(scheduler, runner, clock)


class Overlapped:
    """Prepare each step during the one before it. The answers are the same.

    `compute` schedules step t + 1 and builds its graph while the device computes step t. It then reads the
    samples of step t, hands step t + 1 to the device, and returns step t. The samples of step t enter step
    t + 1 on the device, so the scheduler learns how many tokens were sampled, but not their ids.

    An answer that reaches its length in step t is left out of step t + 1. If an end-of-text id, a stop string
    or an abort ends it, step t + 1 computes one more token, which is discarded. Requests join one step later
    than with `InTurn`. Penalties and grammars need the ids themselves, so if step t samples for a request
    with one of them, nothing is prepared.

    Args:
        scheduler, runner, clock: as for `InTurn`; the runner has a pool.
        may_run_ahead: asked before a step is prepared.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        clock: Callable[[], float],
        may_run_ahead: Callable[[], bool] = lambda: True,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.clock = clock
        self.may_run_ahead = may_run_ahead
        self._under_way: StepUnderWay | None = None
        self._dispatched_at = 0.0

    def is_ahead(self, requests: Requests) -> bool:
        """Whether a step is under way that computes something for one of these requests."""
        step = self._under_way
        return step is not None and any(entry.sequence.id in requests for entry in step.output.entries)

    def compute(self, requests: Requests) -> Computed:
        """Return what one step computed, with the next one under way.

        Args:
            requests: the unfinished requests, by id.
        """
        current = self._under_way
        if current is None or not self.is_ahead(requests):
            current = self._prepare(requests, None)
            self._dispatch(current)
        self._note_unread(current.output, requests)
        is_ready = not needs_tokens(current.output, requests) and self.may_run_ahead()
        following = self._prepare(requests, current) if is_ready else NO_STEP
        if not current.sampled:
            mx.synchronize()  # without samples, no read waits for the step
        samples = read_samples(current.sampled)
        seconds = self.clock() - self._dispatched_at
        self.scheduler.policy.record(current.output, seconds)
        self._dispatch(following)
        ids = [entry.sequence.id for entry in current.output.final if entry.sequence.id in requests]
        return Computed(
            current.output,
            {id: [samples.token_ids[id]] for id in ids},
            {id: [samples.logprobs[id]] for id in ids if id in samples.logprobs},
            seconds,
        )

    def complete(self, computed: Computed, accepted: Mapping[int, Items[int]]) -> None:
        """Replace the placeholders of tokens by their ids; the step itself has been recorded before."""
        for entry in computed.output.final:
            if entry.sequence.id in accepted:
                (entry.sequence.token_ids[entry.end],) = accepted[entry.sequence.id]
                if isinstance(self.scheduler.blocks, PrefixCachingBlockManager):
                    self.scheduler.blocks.prefixes.cut(entry.sequence, entry.end)

    def release(self, request_id: int) -> None:
        """Do nothing: what the step under way computes for the request is discarded."""

    def close(self) -> None:
        """Drop the step under way."""
        self._under_way = None

    def _prepare(self, requests: Requests, before: StepUnderWay | None) -> StepUnderWay:
        """Schedule a step and build its graph. It may need tokens that the previous step samples."""
        output = self.scheduler.schedule()
        if not output.entries:
            return StepUnderWay(output, ())
        batch = self.runner.batch_of(output)
        if before is not None and before.sampled:
            batch = with_unread_tokens(batch, output.entries, before.sampled[0])
        params = {id: requests[id].params for id in output.final_ids}
        return StepUnderWay(output, self.runner.compute(batch, output.final, params))

    def _dispatch(self, step: StepUnderWay) -> None:
        """Let the device start the step, without waiting for it.

        The previous step must have ended. While it still reads the pool, MLX would copy the whole pool
        instead of writing in place.
        """
        self._under_way = step if step.output.entries else None
        sampled = [each.arrays for each in step.sampled]
        mx.async_eval(sampled, self.runner.pool.state)  # type: ignore[no-untyped-call]
        self._dispatched_at = self.clock()

    def _note_unread(self, output: SchedulerOutput, requests: Requests) -> None:
        """Count a step's tokens before their ids are known, and remove sequences that got their last one."""
        self.scheduler.complete(output, dict.fromkeys(output.final_ids, UNREAD))
        for sequence in [entry.sequence for entry in output.final]:
            num_generated = sequence.num_tokens - sequence.num_prompt_tokens
            request = requests.get(sequence.id)
            if request is not None and num_generated >= request.max_tokens:
                self.scheduler.remove(sequence.id)


def needs_tokens(output: SchedulerOutput, requests: Requests) -> bool:
    """Whether the tokens that a step samples must be known before the next one is prepared."""
    sampling = [requests[id] for id in output.final_ids if id in requests]
    return any(request.params.has_penalties or request.constraint is not None for request in sampling)


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
