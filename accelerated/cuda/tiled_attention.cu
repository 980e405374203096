#include <cuda_pipeline.h>
#include <mma.h>
using namespace nvcuda::wmma;

#define MINUS_INFINITY __int_as_float(0xff800000)

constexpr int WARPS = 4;            // of a block
constexpr int ROWS = 16;            // queries of a warp: a matrix has so many
constexpr int QUERIES = WARPS * ROWS;
constexpr int KEYS = 32;            // of a step
constexpr int NUM_THREADS = WARPS * 32;
constexpr int WIDTH = 8;            // entries that a thread moves at a time, 16 bytes
// Distance of rows in memory: so much more than their entries that those of 8 rows lie in different banks.
constexpr int PADDING = 8;
constexpr int STRIDE = KEYS + PADDING;
constexpr int FACTOR_STRIDE = 20;   // of columns, for the same reason

/// Bring the queries of a tile into shared memory, and zeros behind them.
template <typename T, int D>
__device__ void load_queries(const T* query, T* tile, int num_queries, int stride, int thread_number) {
  for (int i = thread_number; i < QUERIES * D / WIDTH; i += NUM_THREADS) {
    int row = i / (D / WIDTH), dim = i % (D / WIDTH) * WIDTH;
    uint4 entries = make_uint4(0, 0, 0, 0);
    if (row < num_queries) entries = *reinterpret_cast<const uint4*>(query + row * stride + dim);
    *reinterpret_cast<uint4*>(tile + row * (D + PADDING) + dim) = entries;
  }
}

/// Begin to bring the keys or values of 32 tokens, found by the sequence's block table, and zeros behind the last. The
/// copies go on while the thread computes, until it waits for them; a GPU before sm_80 makes them at once. If a token's
/// entries aren't neighbours, the thread loads them one by one instead.
template <typename T, int D>
__device__ void begin_tokens(
    const T* x,
    const int* block_table,
    T* tile,
    const int64_t* strides,
    int head_axis,
    int block_size,
    int first,
    int num_keys,
    int thread_number) {
  for (int i = thread_number; i < KEYS * D / WIDTH; i += NUM_THREADS) {
    int row = i / (D / WIDTH), dim = i % (D / WIDTH) * WIDTH, j = first + row;
    T* place = tile + row * (D + PADDING) + dim;
    uint4 entries = make_uint4(0, 0, 0, 0);
    if (j < num_keys) {
      const T* first_entry = x + block_table[j / block_size] * strides[0] +
                          j % block_size * strides[3 - head_axis] + dim * strides[3];
      if (strides[3] == 1) {
        __pipeline_memcpy_async(place, first_entry, sizeof(uint4));
        continue;
      }
      for (int e = 0; e < WIDTH; e++) reinterpret_cast<T*>(&entries)[e] = first_entry[e * strides[3]];
    }
    *reinterpret_cast<uint4*>(place) = entries;
  }
  __pipeline_commit();
}

/// Attention of many queries by the matrix units, softmax over 32 keys at a time: prefill.
///
/// tiles: [number of tiles, 4]; of each its sequence, the first of its queries, how many (64 at most), and how many
/// keys the first one sees. Each of the others sees `more_keys` more than the one before.
/// Query i of head h begins at i * query_stride + h * query_head, and so does its output. Key and value j of
/// sequence s lie in block block_tables[s * longest + j / block_size], at j % block_size. key and value are [blocks,
/// block_size, H, D] if head_axis is 2, and [blocks, H, block_size, D] if it is 1: a dense cache, with one block per
/// sequence. Both may be parts of larger arrays: the distances from one entry to the next along their axes are
/// key_strides and value_strides.
/// One block of 128 threads computes a tile for a head. Its 4 warps have 16 queries each, which stay in their
/// registers, as do the weighted sums of values. In each step the threads bring 32 keys and values into shared
/// memory: the values while the scores are computed, and the next step's keys while the weighted sums are. A warp
/// stores its scores in memory of its own, where lanes 2 r and 2 r + 1 turn those of row r into weights of type T,
/// which the next product loads.
/// blockIdx.x counts tiles, blockIdx.y heads. memory holds 64 rows: first the queries, then keys and values.
/// score_memory holds 40 floats per query.
template <typename T, int D>
__device__ void tiled_attention(
    const T* query,
    const T* key,
    const T* value,
    const int* block_tables,
    const int* tiles,
    T* out,
    const int64_t* key_strides,
    const int64_t* value_strides,
    int heads_per_key_head,
    int block_size,
    int longest,
    int query_stride,
    int query_head,
    int head_axis,
    int more_keys,
    float scale,
    T* memory,
    float* score_memory) {
  tiles += int(blockIdx.x) * 4;
  int thread_number = threadIdx.x, lane = thread_number % 32, first_row = thread_number / 32 * ROWS;
  int head = blockIdx.y, num_queries = tiles[2], num_visible = tiles[3];
  int num_keys = num_visible + (num_queries - 1) * more_keys;  // that the last query sees
  int row = lane / 2, side = lane % 2 * 4;
  query += tiles[1] * query_stride + head * query_head;
  out += (tiles[1] + first_row + row) * query_stride + head * query_head;
  key += head / heads_per_key_head * key_strides[head_axis];
  value += head / heads_per_key_head * value_strides[head_axis];
  block_tables += tiles[0] * longest;
  num_visible += (first_row + row) * more_keys;  // of the lane's row

  T* value_tile = memory + KEYS * (D + PADDING);
  float* score_tile = score_memory + first_row * STRIDE;
  T* weight_tile = reinterpret_cast<T*>(score_tile);
  float* factor_tile = score_tile + ROWS * STRIDE / 2;   // behind the weights
  float* own_scores = score_tile + row * STRIDE + side;  // 4 of 8, and again
  T* own_weights = weight_tile + row * STRIDE + side;

  fragment<matrix_a, 16, 16, 16, T, row_major> queries[D / 16];
  fragment<accumulator, 16, 16, 16, float> sums[D / 16];
  load_queries<T, D>(query, memory, num_queries, query_stride, thread_number);
  __syncthreads();  // the queries are complete
  for (int k = 0; k < D / 16; k++) {
    load_matrix_sync(queries[k], memory + first_row * (D + PADDING) + 16 * k, D + PADDING);
    fill_fragment(sums[k], 0.0f);
  }
  __syncthreads();  // they are in registers
  begin_tokens<T, D>(key, block_tables, memory, key_strides, head_axis, block_size, 0, num_keys, thread_number);

  float maximum = MINUS_INFINITY, total = 0.0f;  // of the lane's row
  for (int first_key = 0; first_key < num_keys; first_key += KEYS) {
    __pipeline_wait_prior(0);  // the thread's part of the keys is there
    __syncthreads();           // all keys are, and no thread needs the values before them any more
    begin_tokens<T, D>(
        value, block_tables, value_tile, value_strides, head_axis, block_size, first_key, num_keys, thread_number);
    for (int j = 0; j < KEYS; j += 16) {
      fragment<accumulator, 16, 16, 16, float> products;
      fill_fragment(products, 0.0f);
      for (int k = 0; k < D / 16; k++) {
        fragment<matrix_b, 16, 16, 16, T, col_major> keys;
        load_matrix_sync(keys, memory + j * (D + PADDING) + 16 * k, D + PADDING);
        mma_sync(products, queries[k], keys, products);
      }
      store_matrix_sync(score_tile + j, products, STRIDE, mem_row_major);
    }
    __syncwarp();  // the scores are complete

    alignas(16) float scores[KEYS / 2];
    float largest = maximum;
    for (int i = 0; i < KEYS / 2; i += 4) {
      *reinterpret_cast<float4*>(scores + i) = *reinterpret_cast<float4*>(own_scores + 2 * i);
      for (int e = 0; e < 4; e++) {
        bool is_seen = first_key + 2 * i + side + e < min(num_visible, num_keys);
        scores[i + e] = is_seen ? scores[i + e] * scale : MINUS_INFINITY;
        largest = max(largest, scores[i + e]);
      }
    }
    largest = max(largest, __shfl_xor_sync(0xffffffff, largest, 1));  // every row sees the first key: it is a number
    float shrink = exp(maximum - largest), added = 0.0f;
    __syncwarp();  // the scores are in registers
    for (int i = 0; i < KEYS / 2; i += 4) {
      alignas(8) T weights[4];
      for (int e = 0; e < 4; e++) {
        weights[e] = T(exp(scores[i + e] - largest));
        added += float(weights[e]);
      }
      *reinterpret_cast<uint2*>(own_weights + 2 * i) = *reinterpret_cast<uint2*>(weights);
    }
    for (int i = 0; i < 8; i++) factor_tile[(i % 4 + i / 4 * 8 + side) * FACTOR_STRIDE + row] = shrink;
    maximum = largest;
    total = total * shrink + added + __shfl_xor_sync(0xffffffff, added, 1);
    __pipeline_wait_prior(0);  // the thread's part of the values is there
    __syncthreads();           // all values, weights and factors are, and no thread needs the keys any more
    if (first_key + KEYS < num_keys)
      begin_tokens<T, D>(
          key, block_tables, memory, key_strides, head_axis, block_size, first_key + KEYS, num_keys, thread_number);

    fragment<accumulator, 16, 16, 16, float> factors;  // its entries lie as those of the sums do
    load_matrix_sync(factors, factor_tile, FACTOR_STRIDE, mem_col_major);
    for (int k = 0; k < D / 16; k++)
      for (int e = 0; e < factors.num_elements; e++) sums[k].x[e] *= factors.x[e];
    for (int j = 0; j < KEYS; j += 16) {
      fragment<matrix_a, 16, 16, 16, T, row_major> weights;
      load_matrix_sync(weights, weight_tile + j, STRIDE);
      for (int k = 0; k < D / 16; k++) {
        fragment<matrix_b, 16, 16, 16, T, row_major> values;
        load_matrix_sync(values, value_tile + j * (D + PADDING) + 16 * k, D + PADDING);
        mma_sync(sums[k], weights, values, sums[k]);
      }
    }
  }

  __syncwarp();  // no lane needs the last weights any more
  for (int first_dim = 0; first_dim < D; first_dim += KEYS) {  // by way of the scores' memory
    for (int j = 0; j < KEYS; j += 16)
      store_matrix_sync(score_tile + j, sums[(first_dim + j) / 16], STRIDE, mem_row_major);
    __syncwarp();  // the sums are complete
    for (int i = 0; i < KEYS && first_row + row < num_queries; i += 8) {
      alignas(16) float entries[4];
      alignas(8) T results[4];
      *reinterpret_cast<float4*>(entries) = *reinterpret_cast<float4*>(own_scores + i);
      for (int e = 0; e < 4; e++) results[e] = T(entries[e] / total);
      *reinterpret_cast<uint2*>(out + first_dim + i + side) = *reinterpret_cast<uint2*>(results);
    }
    __syncwarp();  // no lane needs them any more
  }
}
