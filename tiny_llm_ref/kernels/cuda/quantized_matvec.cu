#include "tile.cuh"

constexpr int COLUMNS = 4;  // per block, one per warp
constexpr int ROWS = 8;     // rows of x that share one read of the weights

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
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int column = blockIdx.x * COLUMNS + warp;
  int first_row = blockIdx.y * ROWS;
  if (column >= N) return;  // the same for all lanes
  int num_rows = min(ROWS, M - first_row);
  constexpr int codes_per_word = 32 / bits;
  int num_words = K / codes_per_word;

  float sums[ROWS] = {};
  for (int word = lane; word < num_words; word += 32) {
    int k = word * codes_per_word;
    int quantization_group = column * (K / group_size) + k / group_size;
    float scale = float(scales[quantization_group]);
    float bias = float(biases[quantization_group]);
    unsigned codes = weights[column * num_words + word];
    for (int i = 0; i < codes_per_word; i++) {
      float weight = scale * float(code_at(codes, i * bits, bits)) + bias;
      for (int row = 0; row < ROWS; row++)
        if (row < num_rows) sums[row] += weight * float(x[(first_row + row) * K + k + i]);
    }
  }
  for (int row = 0; row < ROWS; row++) {
    if (row >= num_rows) break;  // the same for all lanes
    float total = warp_sum(sums[row]);
    if (lane == 0) out[(first_row + row) * N + column] = T(total);
  }
}
