"""Choose the tokens of each step: one budget for prompts and answers. No model, no clock, no I/O."""

from bisect import insort
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
    num_uncomputed = len(sequence.token_ids) - num_computed
    is_final = num_uncomputed <= limit
    return ScheduledTokens(sequence, num_computed, num_uncomputed if is_final else limit, is_final)


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
        if sequence.id in self.sequences:
            raise ValueError(f"duplicate sequence id {sequence.id}: every sequence needs its own id")
        if sequence.num_computed_tokens:
            raise ValueError(
                f"sequence {sequence.id} starts with {sequence.num_computed_tokens} computed tokens, "
                "but their keys and values are not stored here: add it with 0"
            )
        self.blocks.check_fits(sequence)
        sequence.arrival = self._num_added
        self._num_added += 1
        self.sequences[sequence.id] = sequence
        self.policy.add(sequence)

    def schedule(self) -> SchedulerOutput:
        """Schedule the next step: running sequences in order, then waiting ones, until the budget is used up.

        First, while the first waiting sequence ranks before the last running one, call `let_in`, until it
        returns False.

        Every running sequence gets at least one token. If `blocks` has no room for its entry, call
        `make_room`; a sequence that is preempted gets no entry in this step. If the first waiting sequence
        does not fit under a limit, admission stops for this step: nothing overtakes it. What the step
        computes is counted in `complete`, not here.
        """
        self._removed.clear()
        while (first := self.policy.first()) is not None and self._is_urgent(first) and self.let_in(first):
            pass
        entries: list[ScheduledTokens] = []
        num_running = len(self.running)
        spare = self._token_budget() - num_running  # beyond one token per running sequence
        limit = self._longest(1 + spare)
        for sequence in self.running:
            entry = next_tokens(sequence, sequence.num_computed_tokens, limit)
            if self.blocks.allocate(sequence, entry.num_tokens) or self.make_room(entry):
                entries.append(entry)
                if entry.num_tokens > 1:
                    spare -= entry.num_tokens - 1
                    limit = self._longest(1 + spare)
        budget = spare + num_running - len(entries)  # a sequence without an entry leaves its one token
        while budget > 0 and (admitted := self._admit(budget, entries)):
            entries.append(admitted)
            budget -= admitted.num_tokens
        return SchedulerOutput(tuple(entries))

    def make_room(self, entry: ScheduledTokens) -> bool:
        """Preempt running sequences, the last in rank first, until there is room for `entry`.

        A preempted sequence gives back all of its blocks and waits again. When its turn comes, all of its
        tokens are computed again, including the sampled ones (recompute).

        Returns:
            Whether there is room. False if the entry's own sequence was last and has been preempted.
        """
        while self.running[-1] is not entry.sequence:
            self._preempt_last()
            if self.blocks.allocate(entry.sequence, entry.num_tokens):
                return True
        self._preempt_last()
        return False

    def let_in(self, sequence: Sequence) -> bool:
        """Admit an urgent sequence: the first waiting one, which ranks before the last running one.

        While there is no place or no room for one of its tokens, preempt the last running sequence, but none
        that ranks before the urgent one. If `max_num_partial_prefills` running sequences have more than one
        token to compute, it has to wait: change nothing.

        Returns:
            Whether it was admitted. It then runs, with the tokens that `find_prefix` found as computed ones.
        """
        limit = self.config.max_num_partial_prefills
        if limit is not None and sum(each.num_uncomputed_tokens > 1 for each in self.running) >= limit:
            return False
        while not self._try_to_admit(sequence):
            if not self._is_urgent(sequence):
                return False
            self._preempt_last()
        return True

    def complete(self, output: SchedulerOutput, sampled: Mapping[int, int]) -> None:
        """Record that a step was computed. Skip sequences that were removed since it was scheduled.

        Args:
            output: the result of the last call of `schedule`.
            sampled: the sampled token of each final entry, by sequence id.

        Raises:
            ValueError: the ids in `sampled` are not exactly `output.final_ids`; or the step has already been
                completed (shows the `id` of a sequence and its `num_computed_tokens`). Nothing changes then.
        """
        if sampled.keys() != output.final_ids:
            raise ValueError(
                f"sampled must have one token for each of the sequences {sorted(output.final_ids)} and no "
                f"others, got tokens for {sorted(sampled)}"
            )
        entries = output.entries
        if self._removed:
            entries = tuple([entry for entry in entries if entry.sequence not in self._removed])
        for entry in entries:
            num_computed = entry.sequence.num_computed_tokens
            if entry.start != num_computed:
                raise ValueError(
                    f"sequence {entry.sequence.id} has {num_computed} computed tokens, but its entry starts "
                    f"at {entry.start}: complete each step only once"
                )
        for sequence, start, num_tokens, is_final, *_ in entries:
            sequence.num_computed_tokens = start + num_tokens
            if is_final:
                sequence.token_ids.append(sampled[sequence.id])

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
        spare = self._token_budget() - output.num_tokens
        granted = {}
        for entry in output.final:
            sequence = entry.sequence
            if not wanted.get(sequence.id):
                continue
            num_drafts = min(
                wanted[sequence.id],
                spare,
                sequence.max_num_tokens - sequence.num_tokens - 1,
                self.blocks.room_for_drafts(sequence, entry.num_tokens),
            )
            if num_drafts > 0 and self.blocks.allocate(sequence, entry.num_tokens + num_drafts):
                granted[sequence.id] = num_drafts
                spare -= num_drafts
        return granted

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
        self.complete(output, {id: tokens[0] for id, tokens in accepted.items()})
        for sequence in [entry.sequence for entry in output.final]:
            if self.sequences.get(sequence.id) is sequence:
                further = accepted[sequence.id][1:]
                sequence.token_ids += further
                sequence.num_computed_tokens += len(further)
                self.blocks.shrink(sequence)

    def remove(self, sequence_id: int) -> None:
        """Forget a finished or aborted sequence, whether it is running or waiting.

        Raises:
            ValueError: the scheduler has no sequence with this `id`.
        """
        if sequence_id not in self.sequences:
            raise ValueError(f"unknown sequence id {sequence_id}: it was never added, or already removed")
        sequence = self.sequences.pop(sequence_id)
        self._removed.add(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
            self.blocks.free(sequence)
        else:
            self.policy.remove(sequence)

    def _is_urgent(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence ranks before the last running one."""
        rank = self.policy.rank
        return bool(self.running) and rank(sequence) < rank(self.running[-1])

    def _try_to_admit(self, sequence: Sequence) -> bool:
        if len(self.running) == self.config.max_num_seqs:
            return False
        num_found = self.blocks.find_prefix(sequence)
        if not self.blocks.allocate(sequence, 1):
            return False
        self._start(sequence, num_found)
        return True

    def _start(self, sequence: Sequence, num_computed: int) -> None:
        """Let an admitted sequence run."""
        self.policy.remove(sequence)
        sequence.num_computed_tokens = num_computed
        insort(self.running, sequence, key=self.policy.rank)

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
        """Largest number of tokens that one sequence may take from a budget."""
        threshold = self.config.long_prefill_token_threshold
        return budget if threshold is None else min(budget, threshold)

    def _admit(self, budget: int, entries: list[ScheduledTokens]) -> ScheduledTokens | None:
        """Admit the first waiting sequence and return its entry; None if there is none or a limit forbids."""
        sequence = self.policy.first()
        if sequence is None or len(self.running) == self.config.max_num_seqs:
            return None
        if not self.blocks.may_admit(sequence):
            return None
        entry = next_tokens(sequence, self.blocks.find_prefix(sequence), self._longest(budget))
        if self._leaves_too_many_partial(entry, entries):
            return None
        if not self.blocks.allocate(sequence, entry.num_tokens):
            return None
        self._start(sequence, entry.start)
        return entry

    def _leaves_too_many_partial(self, entry: ScheduledTokens, entries: list[ScheduledTokens]) -> bool:
        limit = self.config.max_num_partial_prefills
        if limit is None or entry.is_final:
            return False
        return sum(not each.is_final for each in entries) >= limit
