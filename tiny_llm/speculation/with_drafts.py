"""Steps with drafts, which compute several tokens of an answer where the drafts prove right."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items

from ..engine.dense_runner import Runner
from ..engine.engine_request import EngineRequest
from ..engine.execution import Computed, MakeExecution
from ..engine.in_turn import InTurn
from ..engine.model_runner import ModelRunner
from ..engine.overlapped import Overlapped
from ..scheduling.block_manager import BlockManager
from ..scheduling.scheduler import Scheduler
from .draft_model import DraftModel
from .drafter import Drafter
from .grammar_aware import GrammarAwareDrafter
from .lookup_drafter import LookupDrafter
from .verifying_runner import VerifyingRunner


def check_draft_model(drafter: Drafter, runner: ModelRunner) -> None:
    """Raise ValueError if a drafter's model, if it has one, does not fit the engine's model and blocks.

    Args:
        drafter: the engine's; one that asks another one has it as its `drafter`.
        runner: the engine's. Both models use the same block tables; and a draft that the engine's model does
            not know would be read beyond its logits.
    """
    inner: Drafter | None = drafter
    while inner is not None and not isinstance(inner, DraftModel):
        inner = getattr(inner, "drafter", None)
    if inner is None:
        return
    own, vocab_size = inner.runner.model.config.vocab_size, runner.model.config.vocab_size
    if own != vocab_size:
        raise ValueError(
            f"the draft model has a vocabulary of {own} tokens and the model one of {vocab_size}: choose a "
            "draft model with the same tokenizer"
        )
    if inner.runner.blocks is not runner.blocks:
        raise ValueError("the draft model has other blocks than the engine: give both the same BlockManager")


class WithDrafts:
    """Let a drafter guess the next tokens of some answers, and compute the guesses with everything else.

    The model accepts those drafts that it could have sampled itself. Greedy requests get the same tokens as
    without drafts. So do requests that sample, unless drafts come from a model: their tokens then have the
    same distribution.

    Args:
        scheduler, runner, clock: as for `InTurn`. The runner has a pool, whose blocks drafts need.
        drafter: where drafts come from; a `LookupDrafter` by default.
        overlap: whether steps in which the drafter rests overlap.

    Raises:
        ValueError: the runner has no pool; or drafts come from a model that has another vocabulary or other
            blocks.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float],
        drafter: Drafter | None = None,
        overlap: bool = False,
    ) -> None:
        if not isinstance(runner, ModelRunner):
            kind = type(scheduler.blocks).__name__
            raise ValueError(f"drafts need the blocks of a pool, got {kind}: use {BlockManager.__name__}")
        self.scheduler = scheduler
        self.clock = clock
        self.drafter = GrammarAwareDrafter(LookupDrafter() if drafter is None else drafter)
        check_draft_model(self.drafter, runner)
        self.runner = VerifyingRunner(runner)
        self.without = (
            Overlapped(scheduler, runner, clock, self.may_run_ahead)
            if overlap
            else InTurn(scheduler, runner, clock)
        )
        self._rests_next: bool | None = None

    def compute(self, requests: Mapping[int, EngineRequest]) -> Computed:
        """Compute a step, with drafts where there is room for them. If the drafter rests, do without.

        Args:
            requests: the unfinished requests, by id.

        Returns:
            The step with its drafts. `scheduled` is the step without them, unless the drafter rests.
        """
        raise NotImplementedError("week 3 day 6 task 5: WithDrafts.compute is not written yet")

    def complete(self, computed: Computed, accepted: Mapping[int, Items[int]]) -> None:
        """Report the new tokens to the scheduler, and the step and its time to the policy.

        The scheduler gets the step without its drafts, as it scheduled it. The policy gets the one with them,
        since they take time too.

        Args:
            computed: what `compute` returned.
            accepted: the new tokens of each final entry up to the end of its answer, by id.
        """
        raise NotImplementedError("week 3 day 6 task 5: WithDrafts.complete is not written yet")

    def rests(self, requests: Mapping[int, EngineRequest]) -> bool:
        """Whether the next step goes without drafts. The drafter is asked once per step."""
        if isinstance(self.without, Overlapped) and self.without.is_ahead(requests):
            return True  # the step under way has none
        rests_next, self._rests_next = self._rests_next, None
        return self.drafter.rests(self.scheduler.running) if rests_next is None else rests_next

    def may_run_ahead(self) -> bool:
        """Whether the step after the one under way goes without drafts, so that it can be prepared."""
        rests = self.drafter.rests(self.scheduler.running)
        self._rests_next = None if rests else False
        return rests

    def release(self, request_id: int) -> None:
        """Let the drafter forget a request."""
        self.drafter.release(request_id)

    def close(self) -> None:
        """Drop the step under way, if steps overlap, and close the drafter."""
        self.without.close()
        self.drafter.close()


def with_drafts(drafter: Drafter | None = None, overlap: bool = False) -> MakeExecution:
    """Say where an engine's drafts come from. Arguments and errors are those of `WithDrafts`."""
    return lambda scheduler, runner, clock: WithDrafts(scheduler, runner, clock, drafter, overlap)
