#include "tile.h"

constexpr constant int COLUMNS = 4;  // per threadgroup, one per SIMD group
constexpr constant int ROWS = 8;     // rows of x that share one read of the weights

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
  int column = int(group.x) * COLUMNS + int(simd_group);
  int first_row = int(group.y) * ROWS;
  if (column >= N) return;  // the same for all lanes
  int num_rows = min(ROWS, M - first_row);
  constexpr int codes_per_word = 32 / bits;
  int num_words = K / codes_per_word;

  float sums[ROWS] = {};
  for (int word = int(lane); word < num_words; word += 32) {
    int k = word * codes_per_word;
    int quantization_group = column * (K / group_size) + k / group_size;
    float scale = float(scales[quantization_group]);
    float bias = float(biases[quantization_group]);
    uint codes = weights[column * num_words + word];
    for (int i = 0; i < codes_per_word; i++) {
      float weight = scale * float(code_at(codes, i * bits, bits)) + bias;
      for (int row = 0; row < ROWS; row++)
        if (row < num_rows) sums[row] += weight * float(x[(first_row + row) * K + k + i]);
    }
  }
  for (int row = 0; row < ROWS; row++) {
    if (row >= num_rows) break;  // the same for all lanes
    float total = simd_sum(sums[row]);
    if (lane == 0) out[(first_row + row) * N + column] = T(total);
  }
}
