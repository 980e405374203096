"""Drafts from a small model, whose keys and values are stored in the same blocks."""

from collections.abc import Mapping
from collections.abc import Sequence as Items

from kernel_runtime.limits import check_integer

from ...generation.sampler import SamplingParams
from ...model.qwen3 import Qwen3Model
from ..block_manager import BlockManager
from ..given.draft_runner import DraftRunner
from ..given.drafter import Drafts
from ..given.scheduler_output import ScheduledTokens, SchedulerOutput
from ..sequence import Sequence


class DraftModel:
    """Guess with a smaller model that has the same tokenizer.

    Args:
        model: the smaller model.
        blocks: the scheduler's block manager.
        num_drafts: largest number of drafts of a sequence in a step, at least 0.

    Raises:
        ValueError: `num_drafts` is not an integer, or negative.

    Attributes:
        runner: computes entries with the smaller model, and draws a draft after each final one.
        num_computed: for each sequence, the number of leading tokens whose keys and values the smaller model
            has stored. The last of them may belong to drafts that were rejected since.
    """

    def __init__(self, model: Qwen3Model, blocks: BlockManager, num_drafts: int = 3) -> None:
        check_integer("num_drafts", num_drafts, 0)
        self.num_drafts = num_drafts
        self.num_computed: dict[int, int] = {}
        self.runner = DraftRunner(model, blocks)

    def rests(self, sequences: Items[Sequence]) -> bool:
        """Never rest."""
        return False

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        """The same number for each sequence."""
        return dict.fromkeys([entry.sequence.id for entry in entries], self.num_drafts)

    def missing(self, entry: ScheduledTokens, is_granted: bool) -> ScheduledTokens:
        """Find what the smaller model must compute of a sequence in this step: all up to `entry.end`.

        The engine's model has computed `entry.start` tokens for good. So of what the smaller model has
        stored, that many tokens still count, and no more. A sequence without `num_computed` is new here: its
        first `entry.start` tokens are in shared blocks, which both models have computed.

        Args:
            entry: what the step computes, without drafts.
            is_granted: whether drafts follow. If not, a decode can wait: then nothing is missing.

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
        self.num_computed.pop(sequence_id, None)
        self.runner.release(sequence_id)

    def close(self) -> None:
        """Free the pool."""
        self.runner.close()
