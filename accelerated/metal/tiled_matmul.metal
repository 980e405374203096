#include <metal_stdlib>
using namespace metal;

constexpr constant int TILE = 64;             // rows and columns of out, and inputs of a step
constexpr constant int PART = TILE / 2;       // rows and columns of a SIMD group
constexpr constant int BLOCKS = PART / 8;     // matrices along each
constexpr constant int NUM_THREADS = 4 * 32;
// Distance of a tile's rows in memory: 16 bytes more, so that those of 8 rows lie in different banks.
constexpr constant int STRIDE = TILE + 8;
constexpr constant int CODES = 32;            // that a thread unpacks at a time: all are in one group
constexpr constant int WIDTH = 8;             // entries that it stores at a time, 16 bytes

/// Bring 64 inputs of 64 rows into threadgroup memory, and zeros where x ends.
template <typename T>
void load_rows(
    const device T* x, threadgroup T* tile, int first_row, int first_k, int M, int K, int thread_number) {
  for (int i = thread_number; i < TILE * TILE / WIDTH; i += NUM_THREADS) {
    int row = i / (TILE / WIDTH), k = i % (TILE / WIDTH) * WIDTH;
    const device T* first = x + (first_row + row) * K + first_k + k;
    bool is_inside = first_row + row < M && first_k + k < K;
    uint4 entries = is_inside ? *reinterpret_cast<const device uint4*>(first) : uint4(0);
    *reinterpret_cast<threadgroup uint4*>(tile + row * STRIDE + k) = entries;
  }
}

/// Unpack 64 inputs of 64 columns into threadgroup memory, each once, and zeros where the weights end.
template <typename T, int bits>
void load_weights(
    const device uint* weights,
    const device T* scales,
    const device T* biases,
    threadgroup T* tile,
    int first_column,
    int first_k,
    int N,
    int K,
    int group_size,
    int thread_number) {
  constexpr int codes_per_word = 32 / bits;
  for (int i = thread_number; i < TILE * TILE / CODES; i += NUM_THREADS) {
    int column = first_column + i % TILE, k = first_k + i / TILE * CODES;
    bool is_inside = column < N && k < K;
    alignas(16) uint words[CODES / codes_per_word] = {};
    float scale = 0.0f, bias = 0.0f;
    if (is_inside) {
      const device uint* first = weights + column * (K / codes_per_word) + k / codes_per_word;
      const device uint4* packed = reinterpret_cast<const device uint4*>(first);
      for (int j = 0; j < CODES / codes_per_word / 4; j++) *reinterpret_cast<thread uint4*>(words + 4 * j) = packed[j];
      scale = float(scales[column * (K / group_size) + k / group_size]);
      bias = float(biases[column * (K / group_size) + k / group_size]);
    }
    for (int j = 0; j < CODES; j += WIDTH) {
      alignas(16) T entries[WIDTH];
      for (int e = 0; e < WIDTH; e++) {
        uint code = words[(j + e) / codes_per_word] >> ((j + e) % codes_per_word * bits) & ((1u << bits) - 1);
        entries[e] = T(scale * float(code) + bias);
      }
      threadgroup T* place = tile + i % TILE * STRIDE + i / TILE * CODES + j;
      *reinterpret_cast<threadgroup uint4*>(place) = *reinterpret_cast<thread uint4*>(entries);
    }
  }
}

/// Product of many rows with packed weights, transposed, by the matrix units: prefill.
///
/// x: [M, K], weights: [N, K * bits / 32], scales and biases: [N, K / group_size], out: [M, N]; T has 16 bits.
/// One threadgroup of 128 threads computes 64 x 64 entries of out and walks along K by 64. In each step its threads
/// bring a tile of x and one of weights into threadgroup memory. Each of its 4 SIMD groups then multiplies half
/// of the rows by half of the columns: 4 x 4 matrices of 8 x 8, whose sums are floats.
/// group.x counts tiles of columns, group.y tiles of rows. memory holds both tiles, and at the end the sums.
template <typename T, int bits>
void tiled_matmul(
    const device T* x,
    const device uint* weights,
    const device T* scales,
    const device T* biases,
    device T* out,
    int M,
    int N,
    int K,
    int group_size,
    threadgroup float* memory,
    uint3 group,
    uint simd_group,
    uint lane) {
  int first_row = int(group.y) * TILE, first_column = int(group.x) * TILE;
  int row = int(simd_group) / 2 * PART, column = int(simd_group) % 2 * PART;  // of the SIMD group, in the tile
  int thread_number = int(simd_group) * 32 + int(lane);
  threadgroup T* x_tile = reinterpret_cast<threadgroup T*>(memory);
  threadgroup T* weight_tile = x_tile + TILE * STRIDE;

  simdgroup_matrix<float, 8, 8> sums[BLOCKS][BLOCKS];
  for (int i = 0; i < BLOCKS; i++)
    for (int j = 0; j < BLOCKS; j++) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (int first_k = 0; first_k < K; first_k += TILE) {
    load_rows<T>(x, x_tile, first_row, first_k, M, K, thread_number);
    load_weights<T, bits>(
        weights, scales, biases, weight_tile, first_column, first_k, N, K, group_size, thread_number);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the tiles are complete
    for (int k = 0; k < TILE; k += 8) {
      simdgroup_matrix<T, 8, 8> rows[BLOCKS], columns[BLOCKS];
      for (int i = 0; i < BLOCKS; i++) {
        simdgroup_load(rows[i], x_tile + (row + 8 * i) * STRIDE + k, STRIDE);
        simdgroup_load(columns[i], weight_tile + (column + 8 * i) * STRIDE + k, STRIDE, 0, true);
      }
      for (int i = 0; i < BLOCKS; i++)
        for (int j = 0; j < BLOCKS; j++) simdgroup_multiply_accumulate(sums[i][j], rows[i], columns[j], sums[i][j]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // no thread needs them any more
  }
  for (int i = 0; i < BLOCKS; i++)
    for (int j = 0; j < BLOCKS; j++)
      simdgroup_store(sums[i][j], memory + (row + 8 * i) * STRIDE + column + 8 * j, STRIDE);
  threadgroup_barrier(mem_flags::mem_threadgroup);  // the sums are complete
  for (int i = thread_number; i < TILE * TILE; i += NUM_THREADS) {
    int m = first_row + i / TILE, n = first_column + i % TILE;
    if (m < M && n < N) out[m * N + n] = T(memory[i / TILE * STRIDE + i % TILE]);
  }
}
