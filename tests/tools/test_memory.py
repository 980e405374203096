"""Memory is measured once the work is done: MLX computes and frees in the background."""

import mlx.core as mx

from scripts.course import ROOT
from scripts.hardware.memory import memory_use
from tests.support.check import check_equal, normal

SIZE = 1536  # a multiple of what GPUs allocate
NUM_BYTES = 4 * SIZE * SIZE


def started_products(x: mx.array) -> mx.array:
    """x to the power of 5, which MLX computes meanwhile; three products on the way are freed one by one."""
    product = x
    for _ in range(4):
        product = product @ x
    mx.async_eval(product)
    return product


def matrix() -> mx.array:
    x = normal(SIZE, SIZE, seed=0) / SIZE
    mx.eval(x)
    return x


def test_a_measurement_ends_when_the_work_does() -> None:
    x = matrix()
    with memory_use() as memory:
        product = started_products(x)
    check_equal(memory.held, NUM_BYTES, "bytes held by the last of four products")
    assert memory.peak >= 2 * NUM_BYTES
    assert product.nbytes == NUM_BYTES


def test_a_measurement_begins_when_earlier_work_is_done() -> None:
    x = matrix()
    product = started_products(x)
    with memory_use() as memory:
        pass
    check_equal((memory.held, memory.peak), (0, 0), "bytes held and peak of nothing")
    assert product.nbytes == NUM_BYTES


def test_what_is_freed_counts_negative() -> None:
    x = matrix()
    with memory_use() as memory:
        del x
    check_equal((memory.held, memory.peak), (-NUM_BYTES, 0), "bytes held and peak after an array was freed")


def test_without_reuse_a_larger_buffer_that_was_kept_is_left_alone() -> None:
    larger = mx.arange(450)
    mx.eval(larger)
    del larger
    with memory_use(reuses_buffers=False) as memory:
        x = mx.arange(250)
        mx.eval(x)
    assert memory.held < 450 * 4, f"{memory.held} bytes are held by an array of {x.nbytes}"


def test_nothing_else_asks_for_memory_before_the_work_is_done() -> None:
    files = [file for folder in ("scripts", "benches", "tests") for file in (ROOT / folder).rglob("*.py")]
    asking = {file.name for file in files if "_active_memory()" in file.read_text(encoding="utf-8")}
    assert asking == {"memory.py", "test_memory.py", "test_default_blocks.py"}
