"""Which tokens a step computes: one budget for prompts and answers alike. No model, no clock, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from .given.blocks import Blocks, UnlimitedBlocks
from .given.policy import Fcfs, Policy
from .given.scheduler_output import ScheduledTokens, SchedulerOutput
from .sequence import Sequence


@dataclass(frozen=True)
class SchedulerConfig:
    """The limits of a step.

    Args:
        max_num_batched_tokens: the token budget: most tokens of a step, of all sequences together.
        max_num_seqs: most sequences that run, those in prefill counted.
        long_prefill_token_threshold: most tokens of one sequence in a step; None leaves it to the budget.
        max_num_partial_prefills: most entries of a step that are not final; None for no such limit.
        max_num_prefill_only_tokens: the token budget while no running sequence has generated a token. Nobody
            is reading along then, so a longer step interrupts no stream. None for the same budget as ever.

    Raises:
        ValueError: a limit is below 1, shown by its `name` and `value`; `max_num_batched_tokens` is below
            `max_num_seqs`, so that somebody who runs would get no token in a step; or
            `max_num_prefill_only_tokens` is below `max_num_batched_tokens`.
    """

    max_num_batched_tokens: int = 128
    max_num_seqs: int = 8
    long_prefill_token_threshold: int | None = None
    max_num_partial_prefills: int | None = None
    max_num_prefill_only_tokens: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value < 1:
                raise ValueError(f"{field.name} must be at least 1, got {value}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens} and max_num_seqs "
                f"{self.max_num_seqs}: the budget needs a token for each sequence that runs"
            )
        prefill_only = self.max_num_prefill_only_tokens
        if prefill_only is not None and prefill_only < self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_prefill_only_tokens is {prefill_only} and max_num_batched_tokens "
                f"{self.max_num_batched_tokens}: without streams a step may be larger, not smaller"
            )


def next_tokens(sequence: Sequence, num_computed: int, limit: int) -> ScheduledTokens:
    """The tokens that a sequence computes next: those behind its `num_computed` first, at most `limit`.

    They are final if they are all that was missing: a token may be sampled only when every token before it
    is computed. This is the one place where that is decided.
    """
    raise NotImplementedError("week 3 day 1 task 2: next_tokens is not written yet")


class Scheduler:
    """Decides what each step computes; the caller computes it and tells the scheduler what was sampled.

    Args:
        config: the limits.
        blocks: where keys and values are held; room for everything unless given.
        policy: who is next, and how large a step may be; first come, first served unless given.
    """

    def __init__(
        self, config: SchedulerConfig, blocks: Blocks | None = None, policy: Policy | None = None
    ) -> None:
        self.config = config
        self.blocks: Blocks = UnlimitedBlocks() if blocks is None else blocks
        self.policy: Policy = Fcfs() if policy is None else policy
        self.running: list[Sequence] = []
        self.sequences: dict[int, Sequence] = {}
        self._num_added = 0
        self._removed: set[Sequence] = set()  # who left since the last step was scheduled

    @property
    def has_work(self) -> bool:
        """Whether somebody runs or waits."""
        return bool(self.sequences)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait.

        Raises:
            ValueError: one of this `id` is there; the sequence `id` has `num_computed_tokens` already; or it
                could never run. Nothing is changed.
        """
        raise NotImplementedError("week 3 day 1 task 2: Scheduler.add is not written yet")

    def schedule(self) -> SchedulerOutput:
        """The next step: those that run, in order, then those that wait, as far as the budget goes.

        Each that runs gets a token at least; where `blocks` has no room for it, `make_room` is asked. One
        that waits and does not fit under a limit lets nobody behind it pass. Token counts change in
        `complete`, not here.
        """
        raise NotImplementedError("week 3 day 1 task 3: Scheduler.schedule is not written yet")

    def make_room(self, entry: ScheduledTokens) -> bool:
        """Preempt, last in rank first, until there is room for an entry of a sequence that runs.

        Who is preempted gives back all that it holds and waits again; its tokens are computed anew when its
        turn comes, those that were sampled among them.

        Returns:
            Whether there is room; False if the sequence was the last itself, and is preempted now.
        """
        raise NotImplementedError("week 3 day 5 task 1: Scheduler.make_room is not written yet")

    def complete(self, output: SchedulerOutput, sampled: Mapping[int, int]) -> None:
        """Record that a step was computed. What was removed since it was scheduled is passed over.

        Args:
            output: what `schedule` returned last.
            sampled: the token sampled for each final entry, by the id of its sequence.

        Raises:
            ValueError: a token is missing or one too many, the ids in `sampled` being others than
                `output.final_ids`; or the step was completed before: shows the `id` of a sequence and its
                `num_computed_tokens`. Nothing is changed.
        """
        raise NotImplementedError("week 3 day 1 task 2: Scheduler.complete is not written yet")

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence that is finished or aborted, at any moment of its life.

        Raises:
            ValueError: the sequence `id` is not there.
        """
        raise NotImplementedError("week 3 day 1 task 2: Scheduler.remove is not written yet")
