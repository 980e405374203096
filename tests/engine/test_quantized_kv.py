"""Quantized keys and values: whatever the engine does, a request gets what it gets alone."""

import pytest

from tests.support.schedules import (
    IdTokenizer,
    random_qwen3,
)
from tiny_llm import BlockManager, Engine, UnlimitedBlocks
from tiny_llm.scheduling.blocks import Blocks

pytestmark = pytest.mark.usefixtures("on_cpu")  # on an emulated GPU they take minutes


@pytest.mark.parametrize(
    ("head_dim", "blocks", "kv_bits", "reason"),
    [
        (32, BlockManager(4, 4), 5, "bits must be 4 or 8, got 5"),
        (32, UnlimitedBlocks(), 8, "need the blocks of a pool: use BlockManager"),
        (8, BlockManager(4, 4), 8, "head_dim that is a multiple of 32, got 8"),
    ],
)
def test_what_is_refused(head_dim: int, blocks: Blocks, kv_bits: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Engine(random_qwen3(head_dim=head_dim), IdTokenizer(), max_seq_len=64, blocks=blocks, kv_bits=kv_bits)
