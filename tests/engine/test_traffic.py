"""What the GPU kernels ask for, as the emulator counts it: hardly more than their tiles need."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import pytest

from kernel_runtime.counting import Counts, counting
from kernel_runtime.launch import Language, Target
from tests.engine.test_tiled_matmul import short_weights
from tests.support.check import normal
from tiny_llm.kernels.given.gpu_operations import quantized_matmul_gpu
from tiny_llm.kernels.given.tiled_matmul import multiply_tiles

LIMIT = 1.1  # of the bytes that a tile needs
MATRIX_SHARE = 0.95
LAYOUTS = [(4, 128), (8, 32)]  # bits and group sizes


@dataclass(frozen=True)
class Kernel:
    """A kernel of the table.

    Attributes:
        multiply: its product.
        M, N, K: the shape for which it is counted.
        tile: rows and columns for which x and the weights are read once.
        matrix_share: the least part of its products on matrix units.
    """

    multiply: Callable[..., mx.array]
    M: int
    N: int
    K: int
    tile: tuple[int, int]
    matrix_share: float

    def count(self, language: Language, bits: int, group_size: int) -> Counts:
        """What one run in float16 asks for."""
        x = normal(self.M, self.K, seed=1, dtype=mx.float16)
        weights = short_weights(self.N, self.K, bits, group_size, mx.float16)
        with counting() as runs:
            self.multiply(x, weights, Target(language, "emulator"))
        (run,) = runs
        return run.counts

    def minimum(self, bits: int, group_size: int) -> float:
        """Bytes if each tile reads its rows, weights, scales and biases once."""
        rows, columns = self.tile
        row_bytes, column_bytes = 2 * self.K, self.K * bits / 8 + 4 * self.K / group_size
        num_tiles = (-(-self.M // rows), -(-self.N // columns))
        return num_tiles[1] * self.M * row_bytes + num_tiles[0] * self.N * column_bytes + 2 * self.M * self.N


KERNELS = {
    "tiled_matmul": Kernel(multiply_tiles, 128, 128, 256, (64, 64), MATRIX_SHARE),
    "quantized_matmul": Kernel(quantized_matmul_gpu, 64, 64, 256, (32, 32), 0.0),
    "quantized_matvec": Kernel(quantized_matmul_gpu, 8, 16, 1024, (8, 1), 0.0),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("language", ["metal", "cuda"])
def test_a_kernel_asks_for_little_more_than_its_tiles_need(language: Language, name: str) -> None:
    kernel = KERNELS[name]
    for bits, group_size in LAYOUTS:
        counts, what = kernel.count(language, bits, group_size), f"{bits} bits in groups of {group_size}"
        ratio = counts.requested / kernel.minimum(bits, group_size)
        assert 1 <= ratio <= LIMIT, f"{what}: {ratio:.3f} times the bytes that the tiles need"
        assert counts.bank_conflicts == 0, f"{what}: {counts.bank_conflicts} bank conflicts"
        assert counts.matrix_share >= kernel.matrix_share, (
            f"{what}: {counts.matrix_share:.1%} on matrix units"
        )
