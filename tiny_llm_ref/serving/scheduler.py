"""Which tokens a step computes: one budget for prompts and answers alike. No model, no clock, no I/O."""

from bisect import insort
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
    num_uncomputed = len(sequence.token_ids) - num_computed
    is_final = num_uncomputed <= limit
    return ScheduledTokens(sequence, num_computed, num_uncomputed if is_final else limit, is_final)


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
        if sequence.id in self.sequences:
            raise ValueError(f"sequence {sequence.id} is there already: give each an id of its own")
        if sequence.num_computed_tokens:
            raise ValueError(
                f"sequence {sequence.id} starts with {sequence.num_computed_tokens} tokens computed, "
                "whose keys and values nobody here holds: add it with 0"
            )
        self.blocks.check_fits(sequence)
        sequence.arrival = self._num_added
        self._num_added += 1
        self.sequences[sequence.id] = sequence
        self.policy.add(sequence)

    def schedule(self) -> SchedulerOutput:
        """The next step: those that run, in order, then those that wait, as far as the budget goes.

        Each that runs gets a token at least; where `blocks` has no room for it, `make_room` is asked. One
        that waits and does not fit under a limit lets nobody behind it pass. Token counts change in
        `complete`, not here.
        """
        self._removed.clear()
        entries: list[ScheduledTokens] = []
        num_running = len(self.running)
        spare = self._token_budget() - num_running  # beyond one token for each that runs
        limit = self._longest(1 + spare)
        for sequence in self.running:
            entry = next_tokens(sequence, sequence.num_computed_tokens, limit)
            if self.blocks.allocate(sequence, entry.num_tokens) or self.make_room(entry):
                entries.append(entry)
                if entry.num_tokens > 1:
                    spare -= entry.num_tokens - 1
                    limit = self._longest(1 + spare)
        budget = spare + num_running - len(entries)  # who has no entry leaves its one token too
        while budget > 0 and (admitted := self._admit(budget, entries)):
            entries.append(admitted)
            budget -= admitted.num_tokens
        return SchedulerOutput(tuple(entries))

    def make_room(self, entry: ScheduledTokens) -> bool:
        """Preempt, last in rank first, until there is room for an entry of a sequence that runs.

        Who is preempted gives back all that it holds and waits again; its tokens are computed anew when its
        turn comes, those that were sampled among them.

        Returns:
            Whether there is room; False if the sequence was the last itself, and is preempted now.
        """
        while self.running[-1] is not entry.sequence:
            self._preempt_last()
            if self.blocks.allocate(entry.sequence, entry.num_tokens):
                return True
        self._preempt_last()
        return False

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
        if sampled.keys() != output.final_ids:
            raise ValueError(
                f"a token is sampled for the sequences {sorted(output.final_ids)} and for no other, "
                f"got some for {sorted(sampled)}"
            )
        entries = output.entries
        if self._removed:
            entries = tuple([entry for entry in entries if entry.sequence not in self._removed])
        for entry in entries:
            num_computed = entry.sequence.num_computed_tokens
            if entry.start != num_computed:
                raise ValueError(
                    f"sequence {entry.sequence.id} has {num_computed} tokens computed and the step starts at "
                    f"{entry.start}: it was completed before"
                )
        for sequence, start, num_tokens, is_final in entries:
            sequence.num_computed_tokens = start + num_tokens
            if is_final:
                sequence.token_ids.append(sampled[sequence.id])

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence that is finished or aborted, at any moment of its life.

        Raises:
            ValueError: the sequence `id` is not there.
        """
        if sequence_id not in self.sequences:
            raise ValueError(f"sequence {sequence_id} is not there: it was never added, or removed before")
        sequence = self.sequences.pop(sequence_id)
        self._removed.add(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
            self.blocks.free(sequence)
        else:
            self.policy.remove(sequence)

    def _preempt_last(self) -> None:
        sequence = self.running.pop()
        self.blocks.free(sequence)
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        self.policy.add(sequence)

    def _token_budget(self) -> int:
        limit = self.config.max_num_prefill_only_tokens
        if limit is None or any(each.num_tokens > each.num_prompt_tokens for each in self.running):
            limit = self.config.max_num_batched_tokens
        return min(limit, max(len(self.running), self.policy.token_budget(self.running, limit)))

    def _longest(self, budget: int) -> int:
        """Most tokens that one sequence may have of a budget."""
        threshold = self.config.long_prefill_token_threshold
        return budget if threshold is None else min(budget, threshold)

    def _admit(self, budget: int, entries: list[ScheduledTokens]) -> ScheduledTokens | None:
        """Let the first who waits run; None if nobody does, or if a limit says not yet."""
        sequence = self.policy.first()
        if sequence is None or len(self.running) == self.config.max_num_seqs:
            return None
        entry = next_tokens(sequence, self.blocks.find_prefix(sequence), self._longest(budget))
        if self._leaves_too_many_partial(entry, entries):
            return None
        if not self.blocks.allocate(sequence, entry.num_tokens):
            return None
        self.policy.remove(sequence)
        sequence.num_computed_tokens = entry.start
        insort(self.running, sequence, key=self.policy.rank)
        return entry

    def _leaves_too_many_partial(self, entry: ScheduledTokens, entries: list[ScheduledTokens]) -> bool:
        limit = self.config.max_num_partial_prefills
        if limit is None or entry.is_final:
            return False
        return sum(not each.is_final for each in entries) >= limit
