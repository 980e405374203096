"""The engine's scheduler on paper: the same object, with a cost model in place of the model."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..batching.prefill_metrics import ChunkedPrefillMetrics
from ..scheduling.blocks import Blocks
from ..scheduling.policy import Policy
from ..scheduling.scheduler import Scheduler, SchedulerConfig
from ..scheduling.scheduler_output import SchedulerOutput
from ..scheduling.sequence import Sequence
from .cost_model import CostModel


@dataclass(frozen=True)
class SimulatedRequest:
    """A prompt, the number of tokens in its answer, and its arrival in seconds.

    The scheduler knows only `max_tokens`, the limit on the answer, which is the answer's real length by
    default. `output_ids` are the first tokens of the answer. They matter only if blocks are shared by
    content; all other tokens are arbitrary.

    Raises:
        ValueError: the prompt or the answer has no token, or the arrival is negative.
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
                "a request needs at least one prompt token and one output token, "
                f"got {len(self.prompt_ids)} and {self.num_output_tokens}"
            )
        if not self.arrival >= 0:
            raise ValueError(f"arrival must be at least 0 seconds, got {self.arrival}")


@dataclass(frozen=True)
class SimulatedStep:
    """The output of a step, and when it starts and ends."""

    output: SchedulerOutput
    start: float
    end: float


class Simulator:
    """Predict steps, times to first token and gaps, with the scheduler that the engine runs.

    Args:
        config: the limits of a step.
        cost: predicts the duration of a step.
        blocks, policy: as for `Scheduler`.

    Attributes:
        now: seconds since the start.
        steps: the steps computed so far.
        metrics: TTFT and gaps by request number. Requests are numbered from 0.
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
        """Add a request that has arrived, so its `arrival` is at most `now`. Return its number.

        Raises:
            ValueError: the request could not run even alone.
        """
        number = len(self._requests)
        max_tokens = request.num_output_tokens if request.max_tokens is None else request.max_tokens
        max_num_tokens = len(request.prompt_ids) + max_tokens
        self.scheduler.add(Sequence(number, request.prompt_ids, request.priority, max_num_tokens))
        self._requests.append(request)
        self.metrics.record_arrival(number, request.arrival)
        return number

    def step(self) -> SimulatedStep:
        """Simulate one step: add its cost to `now`, and give each final entry a token.

        A request leaves the scheduler with its last token.
        """
        raise NotImplementedError("week 3 day 1 task 6: Simulator.step is not written yet")

    def run(self, requests: Iterable[SimulatedRequest]) -> None:
        """Serve all requests until they end. Before each step, add those that have arrived.

        If no request is running or waiting, advance `now` to the next arrival.
        """
        raise NotImplementedError("week 3 day 1 task 6: Simulator.run is not written yet")
