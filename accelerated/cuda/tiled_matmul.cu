#include <cuda_pipeline.h>
#include <mma.h>
using namespace nvcuda::wmma;

constexpr int TILE = 64;             // rows and columns of out, and inputs of a step
constexpr int PART = TILE / 2;       // rows and columns of a warp
constexpr int BLOCKS = PART / 16;    // matrices along each
constexpr int NUM_THREADS = 4 * 32;
// Distance of a tile's rows in memory: 16 bytes more, so that those of 8 rows lie in different banks.
constexpr int STRIDE = TILE + 8;
constexpr int CODES = TILE * TILE / NUM_THREADS;  // that a thread unpacks in a step: 32, all in one group
constexpr int WIDTH = 8;             // entries that it stores at a time, 16 bytes

/// Begin to bring 64 inputs of 64 rows into shared memory, and zeros where x ends. The copies go on while the thread
/// computes, until it waits for them; a GPU before sm_80 makes them at once.
template <typename T>
__device__ void begin_rows(
    const T* x, T* tile, int first_row, int first_k, int M, int K, int thread_number) {
  for (int i = thread_number; i < TILE * TILE / WIDTH; i += NUM_THREADS) {
    int row = i / (TILE / WIDTH), k = i % (TILE / WIDTH) * WIDTH;
    const T* first = x + (first_row + row) * K + first_k + k;
    T* place = tile + row * STRIDE + k;
    if (first_row + row < M && first_k + k < K)
      __pipeline_memcpy_async(place, first, sizeof(uint4));
    else
      *reinterpret_cast<uint4*>(place) = make_uint4(0, 0, 0, 0);
  }
  __pipeline_commit();
}

/// Load the 32 codes that the thread will unpack, of 64 inputs of 64 columns, unless the weights end before.
template <int bits>
__device__ void load_codes(
    const unsigned* weights, uint4* codes, int first_column, int first_k, int N, int K, int thread_number) {
  constexpr int codes_per_word = 32 / bits;
  int column = first_column + thread_number % TILE, k = first_k + thread_number / TILE * CODES;
  if (column >= N || k >= K) return;
  const unsigned* first = weights + column * (K / codes_per_word) + k / codes_per_word;
  for (int i = 0; i < CODES * bits / 128; i++) codes[i] = reinterpret_cast<const uint4*>(first)[i];
}

/// Unpack them into shared memory, each once, and zeros where the weights end.
template <typename T, int bits>
__device__ void unpack_codes(
    const uint4* codes,
    const T* scales,
    const T* biases,
    T* tile,
    int first_column,
    int first_k,
    int N,
    int K,
    int group_size,
    int thread_number) {
  constexpr int codes_per_word = 32 / bits;
  const unsigned* words = reinterpret_cast<const unsigned*>(codes);
  int column = first_column + thread_number % TILE, k = first_k + thread_number / TILE * CODES;
  bool is_inside = column < N && k < K;
  int group = column * (K / group_size) + k / group_size;
  float scale = is_inside ? float(scales[group]) : 0.0f, bias = is_inside ? float(biases[group]) : 0.0f;
  for (int j = 0; j < CODES; j += WIDTH) {
    alignas(16) T entries[WIDTH];
    for (int e = 0; e < WIDTH; e++) {
      unsigned code = words[(j + e) / codes_per_word] >> ((j + e) % codes_per_word * bits) & ((1u << bits) - 1);
      entries[e] = T(scale * float(code) + bias);
    }
    T* place = tile + thread_number % TILE * STRIDE + thread_number / TILE * CODES + j;
    *reinterpret_cast<uint4*>(place) = *reinterpret_cast<uint4*>(entries);
  }
}

/// Product of many rows with packed weights, transposed, by the matrix units: prefill.
///
/// x: [M, K], weights: [N, K * bits / 32], scales and biases: [N, K / group_size], out: [M, N]; T has 16 bits.
/// One block of 128 threads computes 64 x 64 entries of out and walks along K by 64. In each step its threads bring a
/// tile of x into shared memory, while they unpack one of weights. Each of its 4 warps then multiplies half of the
/// rows by half of the columns: 2 x 2 matrices of 16 x 16, whose sums are floats. Meanwhile the next step's codes come
/// into registers.
/// blockIdx.x counts tiles of columns, blockIdx.y tiles of rows. memory holds both tiles, and at the end the sums.
template <typename T, int bits>
__device__ void tiled_matmul(
    const T* x,
    const unsigned* weights,
    const T* scales,
    const T* biases,
    T* out,
    int M,
    int N,
    int K,
    int group_size,
    float* memory) {
  int warp = threadIdx.x / 32;
  int first_row = int(blockIdx.y) * TILE, first_column = int(blockIdx.x) * TILE;
  int row = warp / 2 * PART, column = warp % 2 * PART;  // of the warp, in the tile
  int thread_number = threadIdx.x;
  T* x_tile = reinterpret_cast<T*>(memory);
  T* weight_tile = x_tile + TILE * STRIDE;

  fragment<accumulator, 16, 16, 16, float> sums[BLOCKS][BLOCKS];
  for (int i = 0; i < BLOCKS; i++)
    for (int j = 0; j < BLOCKS; j++) fill_fragment(sums[i][j], 0.0f);
  uint4 codes[CODES * bits / 128] = {};  // of the thread
  load_codes<bits>(weights, codes, first_column, 0, N, K, thread_number);
  for (int first_k = 0; first_k < K; first_k += TILE) {
    begin_rows<T>(x, x_tile, first_row, first_k, M, K, thread_number);
    unpack_codes<T, bits>(
        codes, scales, biases, weight_tile, first_column, first_k, N, K, group_size, thread_number);
    __pipeline_wait_prior(0);  // the thread's part of x is there
    __syncthreads();           // the tiles are complete
    load_codes<bits>(weights, codes, first_column, first_k + TILE, N, K, thread_number);
    for (int k = 0; k < TILE; k += 16) {
      fragment<matrix_a, 16, 16, 16, T, row_major> rows[BLOCKS];
      fragment<matrix_b, 16, 16, 16, T, col_major> columns[BLOCKS];
      for (int i = 0; i < BLOCKS; i++) {
        load_matrix_sync(rows[i], x_tile + (row + 16 * i) * STRIDE + k, STRIDE);
        load_matrix_sync(columns[i], weight_tile + (column + 16 * i) * STRIDE + k, STRIDE);
      }
      for (int i = 0; i < BLOCKS; i++)
        for (int j = 0; j < BLOCKS; j++) mma_sync(sums[i][j], rows[i], columns[j], sums[i][j]);
    }
    __syncthreads();  // no thread needs them any more
  }
  for (int i = 0; i < BLOCKS; i++)
    for (int j = 0; j < BLOCKS; j++)
      store_matrix_sync(memory + (row + 16 * i) * STRIDE + column + 16 * j, sums[i][j], STRIDE, mem_row_major);
  __syncthreads();  // the sums are complete
  for (int i = thread_number; i < TILE * TILE; i += NUM_THREADS) {
    int m = first_row + i / TILE, n = first_column + i % TILE;
    if (m < M && n < N) out[m * N + n] = T(memory[i / TILE * STRIDE + i % TILE]);
  }
}
