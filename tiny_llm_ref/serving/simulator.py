"""The engine's scheduler on paper: the same object, a cost in place of the model."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ..batching.prefill_metrics import ChunkedPrefillMetrics
from .cost_model import CostModel
from .given.blocks import Blocks
from .given.policy import Policy
from .given.scheduler_output import SchedulerOutput
from .scheduler import Scheduler, SchedulerConfig
from .sequence import Sequence

ANY_TOKEN = 0


@dataclass(frozen=True)
class SimulatedRequest:
    """A prompt, how many tokens its answer has, and when it arrives, in seconds.

    The scheduler knows `max_tokens` alone, the length that the answer must not pass; unless given it is the
    length that the answer has. `output_ids` is for blocks that are shared by content: the first tokens of
    the answer, where it matters which they are.

    Raises:
        ValueError: it has no prompt or no answer, or arrives before the start.
    """

    prompt_ids: tuple[int, ...]
    num_output_tokens: int
    arrival: float = 0.0
    priority: int = 0
    max_tokens: int | None = None
    output_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt_ids or self.num_output_tokens < 1:
            raise ValueError(
                "a request has a token of prompt and one of answer at least, "
                f"got {len(self.prompt_ids)} and {self.num_output_tokens}"
            )
        if not self.arrival >= 0:
            raise ValueError(f"a request arrives at 0 s or later, got {self.arrival}")


@dataclass(frozen=True)
class SimulatedStep:
    """What a step computes, and from when to when."""

    output: SchedulerOutput
    start: float
    end: float


class Simulator:
    """Predicts steps, times to first token and gaps, by the scheduler that the engine runs.

    Args:
        config: the limits of a step.
        cost: what a step takes.
        blocks, policy: as for `Scheduler`.

    Attributes:
        now: seconds since the start.
        steps: those computed so far.
        metrics: TTFT and gaps, by the request's number; requests are numbered from 0.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cost: CostModel,
        blocks: Blocks | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.scheduler = Scheduler(config, blocks, policy)
        self.cost = cost
        self.now = 0.0
        self.steps: list[SimulatedStep] = []
        self.metrics = ChunkedPrefillMetrics()
        self._requests: list[SimulatedRequest] = []

    def add(self, request: SimulatedRequest) -> int:
        """Let a request wait, whose arrival is not later than now; returns its number.

        Raises:
            ValueError: it could never run.
        """
        number = len(self._requests)
        max_tokens = request.num_output_tokens if request.max_tokens is None else request.max_tokens
        max_num_tokens = len(request.prompt_ids) + max_tokens
        self.scheduler.add(Sequence(number, request.prompt_ids, request.priority, max_num_tokens))
        self._requests.append(request)
        self.metrics.record_arrival(number, request.arrival)
        return number

    def step(self) -> SimulatedStep:
        """Compute one step; each final entry gets a token, and leaves with its last one."""
        output = self.scheduler.schedule()
        step = SimulatedStep(output, self.now, self.now + self.cost.seconds(output))
        self.now = step.end
        self.steps.append(step)
        self.scheduler.policy.record(output, step.end - step.start)
        sequences = [entry.sequence for entry in output.final]
        self.scheduler.complete(output, {sequence.id: self._token(sequence) for sequence in sequences})
        for entry in output.entries:
            if entry.is_prefill:
                self.metrics.record_chunk(entry.num_tokens, step.end - step.start)
        for entry in output.final:
            self.metrics.record_token(entry.sequence.id, step.end)
            if len(entry.sequence.generated_ids) == self._requests[entry.sequence.id].num_output_tokens:
                self.scheduler.remove(entry.sequence.id)
        return step

    def run(self, requests: Iterable[SimulatedRequest]) -> None:
        """Serve requests to their ends; each joins before the first step that starts when it has arrived."""
        pending = deque(sorted(requests, key=lambda request: request.arrival))
        while pending or self.scheduler.has_work:
            if not self.scheduler.has_work:
                self.now = max(self.now, pending[0].arrival)
            while pending and pending[0].arrival <= self.now:
                self.add(pending.popleft())
            self.step()

    def _token(self, sequence: Sequence) -> int:
        """What is sampled next."""
        output_ids = self._requests[sequence.id].output_ids
        place = len(sequence.generated_ids)
        return output_ids[place] if place < len(output_ids) else ANY_TOKEN
