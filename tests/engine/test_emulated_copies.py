"""The emulator's asynchronous copies: there after a wait, for others after a barrier; counted like loads."""

from pathlib import Path

import mlx.core as mx
import pytest

from kernel_runtime.counting import counting
from kernel_runtime.emulation import EmulatorError
from kernel_runtime.gpu_kernel import GpuKernel
from tests.engine.test_emulator import ORDERS, make_probe, run
from tests.support.check import check_close, check_equal, normal

COPY = "__pipeline_memcpy_async(tile + 4 * i, x + 4 * i, 16);"
BEGIN = f"{COPY} __pipeline_commit();"
WAIT = "__pipeline_wait_prior(0);"
REVERSE = "*reinterpret_cast<uint4*>(out + 4 * i) = *reinterpret_cast<uint4*>(tile + 4 * (63 - i));"
SIZE = 4 * 64


def copying(folder: Path, *parts: str) -> GpuKernel:
    return make_probe(folder, "cuda", " ".join(parts), (mx.float32,), 2 * SIZE)


def run_copying(kernel: GpuKernel, order: int) -> mx.array:
    return run(kernel, "cuda", order, size=SIZE)


@pytest.mark.parametrize("order", ORDERS)
def test_a_copy_is_there_after_a_wait_and_a_barrier(order: int, tmp_path: Path) -> None:
    kernel = copying(tmp_path, BEGIN, WAIT, "BARRIER", REVERSE)
    expected = normal(SIZE, seed=1).reshape(64, 4)[::-1].flatten()
    check_close(run_copying(kernel, order), expected, "x in reverse, by fours", tolerance=0)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("what", "parts"),
    {
        "no wait": (BEGIN, "BARRIER"),
        "a copy that is not committed": (COPY, WAIT, "BARRIER"),
        "a wait for the commits before": (BEGIN, "__pipeline_wait_prior(1);", "BARRIER"),
    }.items(),
)
def test_what_is_not_waited_for_is_not_there(
    what: str, parts: tuple[str, ...], order: int, tmp_path: Path
) -> None:
    result = run_copying(copying(tmp_path, *parts, REVERSE), order)
    assert mx.all(mx.isnan(result)).item(), what


@pytest.mark.parametrize("order", ORDERS)
def test_a_wait_leaves_later_commits_under_way(order: int, tmp_path: Path) -> None:
    """Thread 0 reads the second tile, which is still to come; all others read the first."""
    second = BEGIN.replace("tile", f"tile + {SIZE}")
    read = REVERSE.replace("tile", f"tile + (i == 0 ? {SIZE} : 0)")
    result = run_copying(copying(tmp_path, BEGIN, second, "__pipeline_wait_prior(1); BARRIER", read), order)
    check_equal(mx.isnan(result).tolist(), [True] * 4 + [False] * (SIZE - 4), "which entries are nan")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "parts",
    [
        (BEGIN, WAIT, REVERSE),
        (BEGIN, "BARRIER", WAIT, REVERSE),
        (BEGIN, WAIT, "BARRIER", REVERSE, BEGIN, WAIT),  # a thread may still read what the next copy replaces
    ],
    ids=["none", "before the wait", "none before the next copy"],
)
def test_a_missing_barrier_is_an_error(parts: tuple[str, ...], order: int, tmp_path: Path) -> None:
    with pytest.raises(EmulatorError, match=r"writes tile\[\d+\] and thread \d+ reads it, and no barrier"):
        run_copying(copying(tmp_path, *parts), order)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("tile + 4 * i,", "tile + 4 * i + 2,", "accesses 16 bytes of tile at once, at byte 8: that is no"),
        ("x + 4 * i,", "x + 4 * i + 1,", "accesses 16 bytes of x at once, at byte 4: that is no multiple"),
        ("x + 4 * i,", "x + 4 * i + 4,", "thread 63 reads or writes behind the end of x"),
        ("x + 4 * i,", "tile,", "thread 0: an asynchronous copy goes from device memory to shared memory"),
        ("tile + 4 * i,", "out + 4 * i,", "an asynchronous copy goes from device memory to shared memory"),
        (" 16)", " 8)", "the emulator copies 16 bytes at a time, not 8"),
        (COPY, f"for (int k = 0; k < 65; k++) {COPY}", "thread 0 never waits for its copies"),
    ],
)
def test_a_mistake_is_an_error(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    kernel = copying(tmp_path, BEGIN.replace(old, new), WAIT, "BARRIER", REVERSE)
    with pytest.raises(EmulatorError, match=sentence):
        run_copying(kernel, 0)


def test_copies_are_counted_like_loads(tmp_path: Path) -> None:
    load = "*reinterpret_cast<uint4*>(tile + 4 * i) = *reinterpret_cast<const uint4*>(x + 4 * i);"
    with counting() as runs:
        for begin in (load, BEGIN):
            run_copying(copying(tmp_path, begin, WAIT, "BARRIER", REVERSE), 0)
    loaded, copied = (each.counts for each in runs)
    check_equal(copied, loaded, "counts of copies")
    check_equal((copied.read.requested, copied.accesses), (4 * SIZE, 4), "bytes read, and accesses")
