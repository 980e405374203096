#include "tile.cuh"

/// Product of a few rows with packed weights, transposed (decode).
///
/// x: [M, K], weights: [N, K * bits / 32], scales and biases: [N, K / group_size], out: [M, N].
/// One warp computes one column of out for 8 rows. Its lanes divide the words of the weights among
/// themselves: lane 0 takes words 0, 32, 64 ..., and lane 1 takes 1, 33, 65 ... At the end they add up their
/// sums.
/// blockIdx.x counts groups of 4 columns, one column per warp, and blockIdx.y counts groups of 8 rows.
template <typename T, int bits, int group_size>
__device__ void quantized_matvec(
    const T* x,
    const unsigned* weights,
    const T* scales,
    const T* biases,
    T* out,
    int M,
    int N,
    int K) {
  NOT_WRITTEN_YET("week 2 day 3 task 5: quantized_matvec is not written yet");
}
