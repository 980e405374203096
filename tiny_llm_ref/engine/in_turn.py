"""One step after the other: schedule it, compute it, and wait for its tokens."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items

from ..scheduling.scheduler import Scheduler
from .dense_runner import Runner
from .engine_request import EngineRequest
from .execution import Computed


class InTurn:
    """Compute each step when the one before it has ended.

    Args:
        scheduler: decides what a step computes.
        runner: computes it.
        clock: returns seconds, counted from any start.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, clock: Callable[[], float]) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.clock = clock

    def compute(self, requests: Mapping[int, EngineRequest]) -> Computed:
        """Schedule a step and run it. The time of both is the step's.

        Args:
            requests: the unfinished requests, by id. The runner samples with their `params`.
        """
        start = self.clock()
        output = self.scheduler.schedule()
        params = {id: requests[id].params for id in output.final_ids}
        samples = self.runner.run(output, params)
        return Computed(
            output,
            {id: [token] for id, token in samples.token_ids.items()},
            {id: [logprobs] for id, logprobs in samples.logprobs.items()},
            self.clock() - start,
        )

    def complete(self, computed: Computed, accepted: Mapping[int, Items[int]]) -> None:
        """Report the one new token of each final entry to the scheduler, and the step's time to the policy.

        Args:
            computed: what `compute` returned.
            accepted: the new token of each final entry, by id.
        """
        self.scheduler.complete(computed.output, {id: token for id, (token,) in accepted.items()})
        self.scheduler.policy.record(computed.output, computed.seconds)

    def release(self, request_id: int) -> None:
        """Do nothing: nothing is held for a request."""

    def close(self) -> None:
        """Do nothing: between two calls of `compute`, nothing is being computed."""
