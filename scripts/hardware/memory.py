"""Memory of MLX's arrays, measured so that the numbers hold on a GPU as well."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import mlx.core as mx


@dataclass
class MemoryUse:
    """What a block of code took, in bytes, known when the block has ended.

    `held` is what its arrays hold at the end beyond what was held at the start, negative if the block freed
    more than it made. `peak` is the most that was held at any moment beyond what was held at the start.
    """

    held: int = 0
    peak: int = 0


@contextmanager
def memory_use(reuses_buffers: bool = True) -> Iterator[MemoryUse]:
    """Measure the memory that the code in the block takes.

    Args:
        reuses_buffers: whether the block's arrays may take buffers that MLX kept from earlier ones. Such a
            buffer can be larger than the array. Without them the numbers do not depend on what ran before,
            and the block takes more time.
    """
    finish_work()
    if not reuses_buffers:
        mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    found = MemoryUse()
    yield found
    finish_work()
    found.held = mx.get_active_memory() - before
    found.peak = max(0, mx.get_peak_memory() - before)


def finish_work() -> None:
    """Wait until every device has computed and freed what this thread asked it to.

    MLX works in the background, on a CPU as on a GPU: an evaluated array is ready a moment before the memory
    of what it was computed from is free.
    """
    for device in (mx.cpu, mx.gpu):
        if mx.is_available(device):
            mx.synchronize(device)
