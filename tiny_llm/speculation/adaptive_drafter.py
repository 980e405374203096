"""Another drafter's drafts, as many as pay."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from itertools import takewhile
from operator import eq

from ..generation.sampler import SamplingParams
from ..scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from ..scheduling.sequence import Sequence
from .draft_cost import DraftCost
from .draft_length import Acceptance, best_num_drafts
from .drafter import Drafter, Drafts

FIRST_RATE = 0.7
MOST_DRAFTS = 32
NUM_OWN = 8
"""From so many steps with drafts on, a sequence has its own rates."""
LEAST_GAIN = 1.1
"""Drafts must promise to raise the tokens per second this much: promises err, and asking costs time."""
STEPS_OF_REST = 32
"""Where drafts don't pay, this many steps go without, unless a request ends."""
RESTS_BETWEEN_TRIALS = 4
"""After so many rests one draft is tried all the same, to notice when drafts would pay."""


class AdaptiveDrafter:
    """Ask another drafter for as many drafts as are likely to pay.

    Args:
        drafter: where drafts come from.
        cost: what they cost, such as `profiled` measures.
        of_all: how often the drafts of all sequences are accepted, if that is known from before.
    """

    def __init__(self, drafter: Drafter, cost: DraftCost, of_all: Acceptance | None = None) -> None:
        self.drafter = drafter
        self.cost = cost
        self.of_all = Acceptance([FIRST_RATE] * MOST_DRAFTS) if of_all is None else of_all
        self.of: dict[int, Acceptance] = {}
        self._num_learned: dict[int, int] = {}
        self._proposed: dict[int, tuple[int, Items[int]]] = {}
        self._is_resting = False
        self._steps_of_rest = 0
        self._num_at_rest = 0
        self._is_smaller = False  # whether fewer sequences run than when the rest began
        self._num_rests = 0

    def rests(self, sequences: Items[Sequence]) -> bool:
        """Whether this step goes without drafts, since they did not pay a short while ago.

        A request that has ended ends a rest, unless another one runs in its place a step later.
        """
        was_larger, self._is_smaller = not self._is_smaller, len(sequences) < self._num_at_rest
        if self._is_smaller and not was_larger:
            self._steps_of_rest = 0
        self._steps_of_rest -= 1
        self._is_resting = self._steps_of_rest >= 0
        return self._is_resting

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        """Number of drafts for each sequence, of those that the other drafter has."""
        for entry in entries:
            if entry.sequence.id in self._proposed:
                self._learn(entry.sequence)
        if self._is_resting or not entries:
            return {}
        survival = self._survival(entries)
        is_trial = self._num_rests == RESTS_BETWEEN_TRIALS
        first = {id: each[:1] for id, each in survival.items()}  # later drafts are less certain
        if is_trial or any(self._best(entries, first).values()):
            most = self.drafter.wanted(entries)
            survival = {id: survival[id][:number] for id, number in most.items()}
            if not any(survival.values()):
                self._rest(STEPS_OF_REST if is_trial else len(entries) - 1, len(entries))
                return {}
            chosen = self._best(entries, survival)
            if is_trial or any(chosen.values()):
                self._num_rests = 0
                return chosen if any(chosen.values()) else {max(survival, key=lambda id: survival[id][:1]): 1}
        self._num_rests += 1
        self._rest(STEPS_OF_REST, len(entries))
        return {}

    def propose(
        self, output: SchedulerOutput, granted: Mapping[int, int], params: Mapping[int, SamplingParams]
    ) -> Drafts:
        """Return the other drafter's drafts, and note them."""
        if self._is_resting:
            return Drafts()
        drafts = self.drafter.propose(output, granted, params)
        sequences = {entry.sequence.id: entry.sequence for entry in output.final}
        for id, each in drafts.token_ids.items():
            self._proposed[id] = (sequences[id].num_tokens, each)
        return drafts

    def release(self, sequence_id: int) -> None:
        """Forget a sequence."""
        for each in (self.of, self._num_learned, self._proposed):
            each.pop(sequence_id, None)
        self.drafter.release(sequence_id)

    def close(self) -> None:
        """Close the other drafter."""
        self.drafter.close()

    def _rest(self, num_steps: int, num_sequences: int) -> None:
        """Go without drafts for so many steps, unless one of so many sequences ends."""
        self._steps_of_rest, self._num_at_rest = num_steps, num_sequences

    def _learn(self, sequence: Sequence) -> None:
        """See from a sequence's tokens how many of its last drafts were accepted.

        Its length doesn't tell. Forced tokens may have taken the place of drafts, and a sequence that was
        preempted may have gained more tokens in a rest.
        """
        id = sequence.id
        num_tokens, drafts = self._proposed.pop(id)
        num_accepted = len(list(takewhile(bool, map(eq, drafts, sequence.token_ids[num_tokens:]))))
        own = self.of.setdefault(id, Acceptance(self.of_all.rates))
        for each in (own, self.of_all):
            each.record(len(drafts), num_accepted)
        self._num_learned[id] = self._num_learned.get(id, 0) + 1

    def _survival(self, entries: Items[ScheduledTokens]) -> dict[int, list[float]]:
        """The survival of each sequence's drafts, if it had as many as possible."""
        of_all, ids = self.of_all.survival, [entry.sequence.id for entry in entries]
        return {id: self.of[id].survival if self._num_learned.get(id, 0) >= NUM_OWN else of_all for id in ids}

    def _best(self, entries: Items[ScheduledTokens], survival: Mapping[int, Items[float]]) -> dict[int, int]:
        """The number of drafts for each sequence; 0 for all if they don't gain enough."""
        output = SchedulerOutput(tuple(entries))
        step, row = self.cost.seconds(output), self.cost.seconds_of_a_row(output)
        draft_pass = self.cost.seconds_of_a_pass(output)
        chosen = best_num_drafts(survival, step, row, draft_pass)
        tokens = len(entries) + sum(sum(survival[id][:number]) for id, number in chosen.items())
        seconds = step + sum(chosen.values()) * row + max(chosen.values(), default=0) * draft_pass
        if tokens / seconds > LEAST_GAIN * len(entries) / step:
            return chosen
        return dict.fromkeys(chosen, 0)
