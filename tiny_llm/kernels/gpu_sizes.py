"""Sizes that several GPU kernels share."""

HEAD_DIMS = (32, 64, 80, 96, 128, 256)
TILE = 32  # rows and columns, or queries, of a group
TILE_ENTRIES = TILE * (
    TILE + 1
)  # one more in each row, so that the entries of a column lie in different banks
SIMD_GROUPS = 8  # of a group of all kernels but quantized_matvec


def ceil(count: int, size: int) -> int:
    """How many pieces of a size hold a count."""
    return -(-count // size)
