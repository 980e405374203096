"""What attention to blocks reads: the blocks, and where the tokens of a ragged batch lie in them."""

from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class BlockLayout:
    """Where the tokens of N sequences lie: T queries in the rows of a batch, keys and values in blocks.

    The queries of a sequence are the last tokens of its context.

    Attributes:
        block_tables: [N, longest]; entry j of row i is the block that holds tokens j x block_size and up of
            sequence i. Entries beyond the context are ignored.
        query_start_loc: [N + 1]; the queries of sequence i are rows query_start_loc[i] to
            query_start_loc[i + 1] - 1.
        seq_lens: [N]; tokens of each sequence, including its queries.
    """

    block_tables: mx.array
    query_start_loc: mx.array
    seq_lens: mx.array

    def numbers(self) -> tuple[Ints, Ints, Ints]:
        """Wait for `block_tables`, `query_start_loc` and `seq_lens`, and return their numbers."""
        return np.array(self.block_tables), np.array(self.query_start_loc), np.array(self.seq_lens)


class QuantizedBlocks(NamedTuple):
    """Full blocks, which are quantized, and blocks of floats with the newest tokens of each sequence.

    Attributes:
        keys, values: [num_blocks, block_size, H, words per head], as `quantize_heads` returns them. The
            number of bits may differ between the two.
        tail_keys, tail_values: [num_tails, block_size, H, D], floats.
    """

    keys: mx.array
    values: mx.array
    tail_keys: mx.array
    tail_values: mx.array
