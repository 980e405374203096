#include "tile.h"

constexpr constant int ROWS = TILE / SIMD_GROUPS;  // of a tile, per SIMD group

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
  int first_row = int(group.y) * TILE, first_column = int(group.x) * TILE;
  int thread_number = int(simd_group) * 32 + int(lane);
  constexpr int codes_per_word = 32 / bits;
  constexpr int words_per_tile = TILE / codes_per_word;  // per column

  float sums[ROWS] = {};
  for (int first_k = 0; first_k < K; first_k += TILE) {
    load_tile<T>(x_tile, x + first_row * K + first_k, K, M - first_row, TILE, thread_number);
    for (int i = thread_number; i < TILE * words_per_tile; i += SIMD_GROUPS * 32) {
      int column = i / words_per_tile, word = i % words_per_tile;
      if (first_column + column >= N) continue;  // these columns of the tile are never stored
      int quantization_group = (first_column + column) * (K / group_size) + first_k / group_size;
      float scale = float(scales[quantization_group]);
      float bias = float(biases[quantization_group]);
      int row_of_words = (first_column + column) * (K / codes_per_word);
      uint codes = weights[row_of_words + first_k / codes_per_word + word];
      threadgroup float* tile_row = weight_tile + column * TILE_STRIDE;
      for (int j = 0; j < codes_per_word; j++)
        tile_row[word * codes_per_word + j] = scale * float(code_at(codes, j * bits, bits)) + bias;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the tiles are complete
    for (int k = 0; k < TILE; k++) {
      float weight = weight_tile[int(lane) * TILE_STRIDE + k];
      for (int i = 0; i < ROWS; i++)
        sums[i] += weight * x_tile[(int(simd_group) + i * SIMD_GROUPS) * TILE_STRIDE + k];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // all threads are done with the tiles
  }
  int column = first_column + int(lane);
  for (int i = 0; i < ROWS; i++) {
    int row = first_row + int(simd_group) + i * SIMD_GROUPS;
    if (row < M && column < N) out[row * N + column] = T(sums[i]);
  }
}
