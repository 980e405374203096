"""Compile each rank's kernels before the ranks meet, so that none waits for the compiler of another."""

import mlx.core as mx

from ..engine.model_runner import ModelRunner
from ..generation.sampler import SamplingParams
from ..model.qwen3 import Qwen3Model
from ..model.ranks import Ranks
from ..scheduling.block_manager import BlockManager
from ..scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from ..scheduling.sequence import Sequence

NUM_TOKENS = 64
BLOCK_SIZE = 16


class AloneFirst:
    """Ranks that exchange nothing until they have met: until then, each takes its own part for all parts.

    A GPU that waits for another rank gives up after some seconds, and compiling can take longer than that.

    Args:
        ranks: all of them.

    Attributes:
        have_met: whether arrays are exchanged.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        self.have_met = False
        self._ranks = ranks

    def all_sum(self, x: mx.array) -> mx.array:
        """Add up the arrays of all ranks."""
        return self._ranks.all_sum(x) if self.have_met else x

    def all_gather(self, x: mx.array) -> mx.array:
        """Stack the arrays of all ranks."""
        return self._ranks.all_gather(x) if self.have_met else mx.stack([x] * self.size)


def warm_up(part: Qwen3Model) -> None:
    """Compute a chunk and then a decode with a rank's part of a model. The tokens have no meaning."""
    blocks = BlockManager(NUM_TOKENS // BLOCK_SIZE + 1, BLOCK_SIZE)
    sequence = Sequence(0, [0] * (NUM_TOKENS + 1))
    blocks.allocate(sequence, sequence.num_tokens)
    runner = ModelRunner(part, blocks)
    for start, num_tokens in ((0, NUM_TOKENS), (NUM_TOKENS, 1)):
        entry = ScheduledTokens(sequence, start, num_tokens, start > 0)
        runner.run(SchedulerOutput((entry,)), {0: SamplingParams()})
    runner.close()
