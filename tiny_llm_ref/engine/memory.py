"""How much memory there is, and whether a pool fits in it."""

import resource
import sys
from pathlib import Path

import mlx.core as mx

from ..model.qwen3 import Qwen3Model
from ..model.ranks import ranks_on_this_machine
from ..paging.kv_store import kv_bytes_per_token

GIB = 2**30
CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux says what a container may have: in the newer form, and in the older one."""


def free_memory() -> int:
    """Bytes that MLX may still allocate in this process. Ranks on the same machine have equal shares."""
    # On a Mac, the limit exceeds what the GPU can keep resident. Only Metal reports that size.
    most = int(mx.device_info().get("max_recommended_working_set_size", mx.get_memory_limit()))
    most = min(most, mx.get_memory_limit(), container_limit()) // ranks_on_this_machine()
    left = most - mx.get_active_memory()
    return max(0, min(left, address_space()))


def container_limit() -> int:
    """Bytes that the container of this process may have, if there is a limit."""
    limits = [path.read_text().strip() for path in CGROUPS if path.exists()]
    return min([int(limit) for limit in limits if limit.isdigit()], default=sys.maxsize)


def address_space() -> int:
    """Bytes of addresses that are left to this process, if there is a limit, such as `ulimit -v` sets."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    statm = Path("/proc/self/statm")
    in_use = int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 0
    return limit - in_use


def pool_bytes(model: Qwen3Model, num_slots: int, kv_bits: int | None = None) -> int:
    """Bytes of the keys and values of so many tokens, as this model makes them or quantized."""
    return num_slots * kv_bytes_per_token(model.config, kv_bits, dtype_of(model) or mx.float32)


def dtype_of(model: object) -> mx.Dtype | None:
    """The type that a model computes in; None for one without an embedding. Ranks exchange nothing."""
    embedding = getattr(model, "embedding", None)
    embedding = getattr(embedding, "own", embedding)  # of one split over ranks, this rank's part
    return None if embedding is None else embedding(mx.zeros(1, mx.int32)).dtype


def check_memory(num_blocks: int, num_bytes: int) -> None:
    """Raise ValueError if blocks need more bytes than there are. Otherwise a later step ends the process."""
    left = free_memory()
    if num_bytes > left:
        raise ValueError(
            f"{num_blocks} blocks need {num_bytes / GIB:.1f} GiB, and this process may have "
            f"{left / GIB:.1f}: lower num_gpu_blocks_override"
        )
