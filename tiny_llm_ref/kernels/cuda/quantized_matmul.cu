#include "tile.cuh"

constexpr int ROWS = TILE / WARPS;  // of a tile, per warp

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
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
  constexpr int codes_per_word = 32 / bits;
  constexpr int words_per_tile = TILE / codes_per_word;  // per column

  float sums[ROWS] = {};
  for (int first_k = 0; first_k < K; first_k += TILE) {
    load_tile<T>(x_tile, x + first_row * K + first_k, K, M - first_row, TILE);
    for (int i = threadIdx.x; i < TILE * words_per_tile; i += WARPS * 32) {
      int column = i / words_per_tile, word = i % words_per_tile;
      if (first_column + column >= N) continue;  // these columns of the tile are never stored
      int quantization_group = (first_column + column) * (K / group_size) + first_k / group_size;
      float scale = float(scales[quantization_group]);
      float bias = float(biases[quantization_group]);
      int row_of_words = (first_column + column) * (K / codes_per_word);
      unsigned codes = weights[row_of_words + first_k / codes_per_word + word];
      float* tile_row = weight_tile + column * TILE_STRIDE;
      for (int j = 0; j < codes_per_word; j++)
        tile_row[word * codes_per_word + j] = scale * float(code_at(codes, j * bits, bits)) + bias;
    }
    __syncthreads();  // the tiles are complete
    for (int k = 0; k < TILE; k++) {
      float weight = weight_tile[lane * TILE_STRIDE + k];
      for (int i = 0; i < ROWS; i++)
        sums[i] += weight * x_tile[(warp + i * WARPS) * TILE_STRIDE + k];
    }
    __syncthreads();  // all threads are done with the tiles
  }
  int column = first_column + lane;
  for (int i = 0; i < ROWS; i++) {
    int row = first_row + warp + i * WARPS;
    if (row < M && column < N) out[row * N + column] = T(sums[i]);
  }
}
