#include "tile.h"

/// Product of many rows with packed weights, transposed (prefill).
///
/// x: [M, K], weights: [N, K * bits / 32], scales and biases: [N, K / group_size], out: [M, N].
/// One threadgroup of 256 threads computes 32 x 32 entries of out and walks along K in steps of 32. In each
/// step, its threads load a tile of x and a tile of weights into threadgroup memory, so each weight is
/// dequantized only once for all rows. Then each thread adds to its 4 entries of out: column lane, and rows
/// simd_group, simd_group + 8 ...
/// group.x counts tiles of columns and group.y tiles of rows. Each tile holds 32 * 33 floats.
template <typename T, int bits, int group_size>
void quantized_matmul(
    const device T* x,
    const device uint* weights,
    const device T* scales,
    const device T* biases,
    device T* out,
    int M,
    int N,
    int K,
    threadgroup float* x_tile,
    threadgroup float* weight_tile,
    uint3 group,
    uint simd_group,
    uint lane) {
  NOT_WRITTEN_YET("week 2 day 3 task 4: quantized_matmul is not written yet");
}
