#include "tile.h"

/// Product of a few rows with packed weights, transposed (decode).
///
/// x: [M, K], weights: [N, K * bits / 32], scales and biases: [N, K / group_size], out: [M, N].
/// One SIMD group computes one column of out for 8 rows. Its lanes divide the words of the weights among
/// themselves: lane 0 takes words 0, 32, 64 ..., and lane 1 takes 1, 33, 65 ... At the end they add up their
/// sums.
/// group.x counts groups of 4 columns, one column per SIMD group, and group.y counts groups of 8 rows.
template <typename T, int bits, int group_size>
void quantized_matvec(
    const device T* x,
    const device uint* weights,
    const device T* scales,
    const device T* biases,
    device T* out,
    int M,
    int N,
    int K,
    uint3 group,
    uint simd_group,
    uint lane) {
  NOT_WRITTEN_YET("week 2 day 3 task 4: quantized_matvec is not written yet");
}
