"""Drafts from a small model, whose keys and values are stored in the same blocks."""

from collections.abc import Mapping
from collections.abc import Sequence as Items

from kernel_runtime.limits import check_integer

from ..generation.sampler import SamplingParams
from ..model.qwen3 import Qwen3Model
from ..scheduling.block_manager import BlockManager
from ..scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from ..scheduling.sequence import Sequence
from .draft_runner import DraftRunner
from .drafter import Drafts


class DraftModel:
    """Guess with a smaller model that has the same tokenizer.

    A sequence that has outgrown the smaller model's context gets no drafts.

    Args:
        model: the smaller model.
        blocks: the scheduler's block manager.
        num_drafts: largest number of drafts of a sequence in a step, at least 0.

    Raises:
        ValueError: `num_drafts` is not an integer, or negative.

    Attributes:
        runner: computes entries with the smaller model, draws a draft after each final one, and remembers how
            many tokens of a sequence are stored.
    """

    def __init__(self, model: Qwen3Model, blocks: BlockManager, num_drafts: int = 3) -> None:
        check_integer("num_drafts", num_drafts, 0)
        self.num_drafts = num_drafts
        self.runner = DraftRunner(model, blocks)

    def rests(self, sequences: Items[Sequence]) -> bool:
        """Never rest."""
        return False

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        """The same number for each sequence; fewer at the end of the smaller model's context, then none."""
        most = self.runner.context + 1  # the last draft is not computed
        return {entry.sequence.id: max(0, min(self.num_drafts, most - entry.end)) for entry in entries}

    def missing(self, entry: ScheduledTokens, num_stored: int, is_granted: bool) -> ScheduledTokens:
        """Find what the smaller model must compute of a sequence in this step: all up to `entry.end`.

        It begins at `num_stored` or at `entry.start`, whichever is smaller. So it computes the entry's tokens
        again if it has stored them: the first draft is drawn after the last of them.

        Args:
            entry: what the step computes, without drafts.
            num_stored: number of the sequence's leading tokens that the smaller model has stored. They may
                end before `entry.start`, since the engine's model also computes tokens in steps without
                drafts.
            is_granted: whether drafts follow. If not, a decode, which is a final entry of one token, can
                wait: then nothing is missing.

        Returns:
            An entry that is final if `is_granted`. If nothing is missing, it has no tokens.
        """
        raise NotImplementedError("week 3 day 6 task 7: DraftModel.missing is not written yet")

    def propose(
        self, output: SchedulerOutput, granted: Mapping[int, int], params: Mapping[int, SamplingParams]
    ) -> Drafts:
        """Draw the drafts one by one, each in a pass of the smaller model over all sequences that need it.

        The first pass computes what is missing of each entry. Each later pass computes one draft of each
        sequence that needs another. The last draft of a sequence is not computed: nothing is drawn after it.
        """
        raise NotImplementedError("week 3 day 6 task 7: DraftModel.propose is not written yet")

    def release(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self.runner.release(sequence_id)

    def close(self) -> None:
        """Free the pool."""
        self.runner.close()
