"""Admit a request only if there is room for it, and say when to come back if there is not."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType

from ..scheduling.scheduler import SchedulerConfig
from ..simulation.cost_model import CostModel
from ..simulation.simulator import SimulatedRequest, Simulator

LONGEST_WAIT = 60
"""Seconds after which any client may ask again."""


class QueueFullError(Exception):
    """There is no room for a request.

    Attributes:
        reason: the limit that was reached: "num_queued_reqs" or "num_queued_tokens".
        retry_after: whole seconds after which there may be room, at least 1.
    """

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(f"the server is full ({reason}): try again in {retry_after} s")
        self.reason = reason
        self.retry_after = retry_after


class Admission:
    """Count the requests in the server, and refuse those that exceed the limits.

    A request reserves its slots before anything else is done for it. If tokenizing came first, a burst of
    requests would cost the server the tokenizing of all of them, including those it then refuses.

    Args:
        max_num_reqs: largest number of unfinished requests, running and queued together. Each of the n
            answers to a prompt counts.
        max_num_queued_tokens: largest number of prompt tokens of requests that have no token yet; None for
            no limit. A single request is always admitted.
        estimate_wait: returns the seconds until there is room.

    Attributes:
        num_reqs: slots that are reserved.
        num_queued_tokens: prompt tokens of requests that have no token yet.
    """

    def __init__(
        self,
        max_num_reqs: int,
        max_num_queued_tokens: int | None = None,
        estimate_wait: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.max_num_reqs = max_num_reqs
        self.max_num_queued_tokens = max_num_queued_tokens
        self.estimate_wait = estimate_wait
        self.num_reqs = 0
        self.num_queued_tokens = 0

    def reserve(self, num_reqs: int = 1) -> "Reservation":
        """Reserve slots, to be released at the end of a `with` block.

        Raises:
            QueueFullError: fewer than `num_reqs` slots are free. Nothing is reserved then.
        """
        if self.num_reqs + num_reqs > self.max_num_reqs:
            raise self.full("num_queued_reqs")
        self.num_reqs += num_reqs
        return Reservation(self, num_reqs)

    def full(self, reason: str) -> QueueFullError:
        """Make the error for a limit, with the time to wait, rounded up to whole seconds."""
        wait = min(self.estimate_wait(), LONGEST_WAIT)
        return QueueFullError(reason, max(1, math.ceil(wait)))


class Reservation:
    """Slots of one client's request. The end of the `with` block releases all that is still reserved.

    Args:
        admission: where the slots are counted.
        num_reqs: number of slots.
    """

    def __init__(self, admission: Admission, num_reqs: int) -> None:
        self.admission = admission
        self.num_reqs = num_reqs
        self.num_tokens = 0

    def count_tokens(self, num_tokens: int) -> None:
        """Count prompt tokens, once they are known, until `tokens_computed`.

        Raises:
            QueueFullError: other requests have queued tokens, and with these there would be more than
                `max_num_queued_tokens`. Nothing is counted then, but the slots stay reserved.
        """
        admission = self.admission
        limit, of_others = admission.max_num_queued_tokens, admission.num_queued_tokens - self.num_tokens
        if limit is not None and of_others > 0 and admission.num_queued_tokens + num_tokens > limit:
            raise admission.full("num_queued_tokens")
        admission.num_queued_tokens += num_tokens
        self.num_tokens += num_tokens

    def tokens_computed(self, num_tokens: int) -> None:
        """Stop counting prompt tokens that have been computed."""
        self.admission.num_queued_tokens -= num_tokens
        self.num_tokens -= num_tokens

    def release_one(self) -> None:
        """Release one slot, of an answer that has ended."""
        self.admission.num_reqs -= 1
        self.num_reqs -= 1

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.tokens_computed(self.num_tokens)
        for _ in range(self.num_reqs):
            self.release_one()


@dataclass(frozen=True)
class RemainingWork:
    """What is left of a request: prompt tokens to compute, and the most tokens its answer may still get."""

    num_prompt_tokens: int
    max_num_output_tokens: int


def seconds_until_room(
    config: SchedulerConfig, cost: CostModel, unfinished: Iterable[RemainingWork]
) -> float:
    """Predict when the first of the unfinished requests ends, by simulating the steps until then.

    Args:
        config: the limits of a step.
        cost: predicts the duration of a step.
        unfinished: the requests in the server, in the order of their arrival.

    Returns:
        Seconds from now; 0 if there are no requests.
    """
    simulator = Simulator(config, cost)
    num_added = 0
    for work in unfinished:
        prompt = (0,) * max(1, work.num_prompt_tokens)
        simulator.add(SimulatedRequest(prompt, max(1, work.max_num_output_tokens)))
        num_added += 1
    while num_added and len(simulator.scheduler.sequences) == num_added:
        simulator.step()
    return simulator.now
