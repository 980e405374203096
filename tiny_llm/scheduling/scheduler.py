"""Choose the tokens of each step: one budget for prompts and answers. No model, no clock, no I/O."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, fields

from kernel_runtime.limits import check_integer

from .blocks import Blocks, UnlimitedBlocks
from .policy import Fcfs, Policy
from .scheduler_output import ScheduledTokens, SchedulerOutput
from .sequence import Sequence


@dataclass(frozen=True)
class SchedulerConfig:
    """The limits of a step.

    Args:
        max_num_batched_tokens: the token budget: largest number of tokens in a step, over all sequences.
        max_num_seqs: largest number of running sequences, including those in prefill.
        long_prefill_token_threshold: largest number of tokens of one sequence in a step; None for no limit
            besides the budget.
        max_num_partial_prefills: no waiting sequence is admitted with an entry that isn't final if the step
            already has this many; None for no such limit.
        max_num_prefill_only_tokens: the token budget while no running sequence has generated a token. No
            user is reading along then, so a longer step interrupts no stream. None for the usual budget.

    Raises:
        ValueError: a limit is no integer or below 1 (shows its `name` and `value`);
            `max_num_batched_tokens` is below `max_num_seqs`, so a running sequence could get no token in a
            step; or `max_num_prefill_only_tokens` is below `max_num_batched_tokens`.
    """

    max_num_batched_tokens: int = 128
    max_num_seqs: int = 8
    long_prefill_token_threshold: int | None = None
    max_num_partial_prefills: int | None = None
    max_num_prefill_only_tokens: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                check_integer(field.name, value, 1)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} must be at least max_num_seqs "
                f"{self.max_num_seqs}: every running sequence needs a token"
            )
        prefill_only = self.max_num_prefill_only_tokens
        if prefill_only is not None and prefill_only < self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_prefill_only_tokens {prefill_only} must be at least max_num_batched_tokens "
                f"{self.max_num_batched_tokens}: without streams a step may only be larger"
            )


def next_tokens(sequence: Sequence, num_computed: int, limit: int) -> ScheduledTokens:
    """Next tokens of a sequence to compute: at most `limit`, after the first `num_computed`.

    The entry is final if no uncomputed token remains after it, since a token may be sampled only after every
    token before it has been computed. This is the only place that decides it.
    """
    raise NotImplementedError("week 3 day 1 task 2: next_tokens is not written yet")


class Scheduler:
    """Decide what each step computes. The caller computes it and reports the sampled tokens (`complete`).

    Args:
        config: the limits of a step.
        blocks: room for keys and values; unlimited by default.
        policy: decides which sequence is next and how large a step may be; first come, first served by
            default.
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
        # Filled by `remove`, cleared by `schedule`: the sequences of the step that `complete` skips.
        self._removed: set[Sequence] = set()

    @property
    def has_work(self) -> bool:
        """Whether any sequence is running or waiting."""
        return bool(self.sequences)

    def add(self, sequence: Sequence) -> None:
        """Add a sequence to the waiting ones, and set its `arrival`: 0 for the first, 1 for the next, ...

        Raises:
            ValueError: the scheduler already has a sequence with this `id`; the sequence starts with
                `num_computed_tokens` other than 0; or `check_fits` of the blocks refuses it. Nothing changes
                then.
        """
        raise NotImplementedError("week 3 day 1 task 2: Scheduler.add is not written yet")

    def schedule(self) -> SchedulerOutput:
        """Schedule the next step: running sequences in order, then waiting ones, until the budget is used up.

        First, while the first waiting sequence ranks before the last running one, call `let_in`, until it
        returns False.

        Every running sequence gets at least one token. If `blocks` has no room for its entry, call
        `make_room`; a sequence that is preempted gets no entry in this step. If the first waiting sequence
        does not fit under a limit, admission stops for this step: nothing overtakes it. What the step
        computes is counted in `complete`, not here.
        """
        raise NotImplementedError("week 3 day 1 task 3: Scheduler.schedule is not written yet")

    def make_room(self, entry: ScheduledTokens) -> bool:
        """Preempt running sequences, the last in rank first, until there is room for `entry`.

        A preempted sequence gives back all of its blocks and waits again. When its turn comes, all of its
        tokens are computed again, including the sampled ones (recompute).

        Returns:
            Whether there is room. False if the entry's own sequence was last and has been preempted.
        """
        raise NotImplementedError("week 3 day 5 task 1: Scheduler.make_room is not written yet")

    def let_in(self, sequence: Sequence) -> bool:
        """Admit an urgent sequence: the first waiting one, which ranks before the last running one.

        While there is no place or no room for one of its tokens, preempt the last running sequence, but none
        that ranks before the urgent one. If `max_num_partial_prefills` running sequences have more than one
        token to compute, it has to wait: change nothing.

        Returns:
            Whether it was admitted. It then runs, with the tokens that `find_prefix` found as computed ones.
        """
        raise NotImplementedError("week 3 day 5 task 7: Scheduler.let_in is not written yet")

    def complete(self, output: SchedulerOutput, sampled: Mapping[int, int]) -> None:
        """Record that a step was computed. Skip sequences that were removed since it was scheduled.

        Args:
            output: the result of the last call of `schedule`.
            sampled: the sampled token of each final entry, by sequence id.

        Raises:
            ValueError: the ids in `sampled` are not exactly `output.final_ids`; or the step has already been
                completed (shows the `id` of a sequence and its `num_computed_tokens`). Nothing changes then.
        """
        raise NotImplementedError("week 3 day 1 task 2: Scheduler.complete is not written yet")

    def grant_drafts(self, output: SchedulerOutput, wanted: Mapping[int, int]) -> dict[int, int]:
        """Decide how many drafts a step computes, from what all other tokens have left over.

        A draft needs a place in the budget and in the blocks, and the answer must not become longer than it
        may: the step samples one more token after the last draft. So drafts preempt, delay and evict nothing.

        Args:
            output: the result of the last call of `schedule`.
            wanted: number of drafts that could be used, by sequence id.

        Returns:
            The number for each sequence that gets any, for which there is room in the blocks now. Entries
            that aren't final get none.
        """
        raise NotImplementedError("week 3 day 6 task 3: Scheduler.grant_drafts is not written yet")

    def complete_drafted(self, output: SchedulerOutput, accepted: Mapping[int, Items[int]]) -> None:
        """Record that a step with drafts was computed, and return the room that rejected drafts took.

        Sequences that were removed since it was scheduled are skipped, even if another has their id by now.

        Args:
            output: the result of the last call of `schedule`, without drafts.
            accepted: new tokens of each final entry, by sequence id: the accepted drafts and the token
                sampled after them. At least one each; all of them but the last have been computed.

        Raises:
            ValueError: as for `complete`.
        """
        raise NotImplementedError("week 3 day 6 task 3: Scheduler.complete_drafted is not written yet")

    def remove(self, sequence_id: int) -> None:
        """Forget a finished or aborted sequence, whether it is running or waiting.

        Raises:
            ValueError: the scheduler has no sequence with this `id`.
        """
        raise NotImplementedError("week 3 day 1 task 2: Scheduler.remove is not written yet")
