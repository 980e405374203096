"""How an engine's steps are computed: in turn, overlapped, with drafts, or under a time limit."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

from ..batching.answer import TokenLogprobs
from ..scheduling.scheduler import Scheduler
from ..scheduling.scheduler_output import SchedulerOutput
from .dense_runner import Runner
from .engine_request import EngineRequest


@dataclass(frozen=True)
class Computed:
    """A step whose samples have been read, but not yet accepted by their requests.

    Attributes:
        output: what was computed, drafts included.
        token_ids: the new tokens of each final entry, by request id: accepted drafts, then the sampled token.
        logprobs: their log-probabilities, by id, for the requests that asked for them.
        seconds: how long the step took.
        scheduled: the scheduler's own output, if drafts were added to it.
    """

    output: SchedulerOutput
    token_ids: Mapping[int, Items[int]]
    logprobs: Mapping[int, Items[TokenLogprobs]] = field(default_factory=dict)
    seconds: float = 0.0
    scheduled: SchedulerOutput | None = None


class Execution(Protocol):
    """Computes an engine's steps.

    `Engine.step` calls `compute`, lets the requests accept their tokens, and calls `complete`.
    """

    def compute(self, requests: Mapping[int, EngineRequest]) -> Computed:
        """Compute the next step.

        Args:
            requests: the unfinished requests, by id. Only they get tokens.
        """

    def complete(self, computed: Computed, accepted: Mapping[int, Items[int]]) -> None:
        """Let the scheduler and the policy know of a step.

        Args:
            computed: what `compute` returned last.
            accepted: the new tokens of each final entry up to the end of its answer, at least one each.
        """

    def release(self, request_id: int) -> None:
        """Forget a request that has ended or was aborted."""

    def close(self) -> None:
        """Drop whatever is still being computed, and release everything that is held for it."""


MakeExecution = Callable[[Scheduler, Runner, Callable[[], float]], Execution]
"""Makes the execution of an engine from its scheduler, its runner and its clock."""
