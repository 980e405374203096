#include "tile.cuh"

/// Product of many rows with packed weights, transposed (prefill).
///
/// x: [M, K], weights: [N, K * bits / 32], scales and biases: [N, K / group_size], out: [M, N].
/// One block of 256 threads computes 32 x 32 entries of out and walks along K in steps of 32. In each step,
/// its threads load a tile of x and a tile of weights into shared memory, so each weight is dequantized only
/// once for all rows. Then each thread adds to its 4 entries of out: column lane, and rows warp, warp + 8 ...
/// blockIdx.x counts tiles of columns and blockIdx.y tiles of rows. Each tile holds 32 * 33 floats.
template <typename T, int bits, int group_size>
__device__ void quantized_matmul(
    const T* x,
    const unsigned* weights,
    const T* scales,
    const T* biases,
    T* out,
    int M,
    int N,
    int K,
    float* x_tile,
    float* weight_tile) {
  NOT_WRITTEN_YET("week 2 day 3 task 5: quantized_matmul is not written yet");
}
