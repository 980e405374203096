#include <metal_stdlib>
using namespace metal;

constexpr constant int SIMD_GROUPS = 4;     // of a threadgroup
constexpr constant int ROWS = 16;           // queries of a SIMD group
constexpr constant int BLOCKS = ROWS / 8;   // matrices along them
constexpr constant int QUERIES = SIMD_GROUPS * ROWS;
constexpr constant int KEYS = 32;           // of a step
constexpr constant int NUM_THREADS = SIMD_GROUPS * 32;
constexpr constant int WIDTH = 8;           // entries that a thread moves at a time, 16 bytes
// Distance of rows in memory: so much more than their entries that those of 8 rows lie in different banks.
constexpr constant int PADDING = 8;
constexpr constant int STRIDE = KEYS + PADDING;

/// Bring the queries of a tile into threadgroup memory, and zeros behind them.
template <typename T, int D>
void load_queries(const device T* query, threadgroup T* tile, int num_queries, int stride, int thread_number) {
  for (int i = thread_number; i < QUERIES * D / WIDTH; i += NUM_THREADS) {
    int row = i / (D / WIDTH), dim = i % (D / WIDTH) * WIDTH;
    uint4 entries = uint4(0);
    if (row < num_queries) entries = *reinterpret_cast<const device uint4*>(query + row * stride + dim);
    *reinterpret_cast<threadgroup uint4*>(tile + row * (D + PADDING) + dim) = entries;
  }
}

/// The same for the keys or values of 32 tokens, found by the sequence's block table; entry by entry if those of a
/// token aren't neighbours.
template <typename T, int D>
void load_tokens(
    const device T* x,
    const device int* block_table,
    threadgroup T* tile,
    const constant int64_t* strides,
    int head_axis,
    int block_size,
    int first,
    int num_keys,
    int thread_number) {
  for (int i = thread_number; i < KEYS * D / WIDTH; i += NUM_THREADS) {
    int row = i / (D / WIDTH), dim = i % (D / WIDTH) * WIDTH, j = first + row;
    uint4 entries = uint4(0);
    if (j < num_keys) {
      const device T* first_entry = x + block_table[j / block_size] * strides[0] +
                          j % block_size * strides[3 - head_axis] + dim * strides[3];
      if (strides[3] == 1)
        entries = *reinterpret_cast<const device uint4*>(first_entry);
      else
        for (int e = 0; e < WIDTH; e++) reinterpret_cast<thread T*>(&entries)[e] = first_entry[e * strides[3]];
    }
    *reinterpret_cast<threadgroup uint4*>(tile + row * (D + PADDING) + dim) = entries;
  }
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
/// One threadgroup of 128 threads computes a tile for a head. Its 4 SIMD groups have 16 queries each, which stay in
/// their registers, as do the weighted sums of values. In each step the threads bring 32 keys and values into
/// threadgroup memory. A SIMD group stores its scores in memory of its own, where lanes 2 r and 2 r + 1 turn those
/// of row r into weights of type T, which the next product loads.
/// group.x counts tiles, group.y heads. memory holds 64 rows: first the queries, then keys and values. score_memory
/// holds 40 floats per query.
template <typename T, int D>
void tiled_attention(
    const device T* query,
    const device T* key,
    const device T* value,
    const device int* block_tables,
    const device int* tiles,
    device T* out,
    const constant int64_t* key_strides,
    const constant int64_t* value_strides,
    int heads_per_key_head,
    int block_size,
    int longest,
    int query_stride,
    int query_head,
    int head_axis,
    int more_keys,
    float scale,
    threadgroup T* memory,
    threadgroup float* score_memory,
    uint3 group,
    uint simd_group,
    uint lane) {
  tiles += int(group.x) * 4;
  int head = int(group.y), num_queries = tiles[2], num_visible = tiles[3];
  int num_keys = num_visible + (num_queries - 1) * more_keys;  // that the last query sees
  int first_row = int(simd_group) * ROWS, row = int(lane) / 2, side = int(lane) % 2 * 4;
  int thread_number = int(simd_group) * 32 + int(lane);
  query += tiles[1] * query_stride + head * query_head;
  out += (tiles[1] + first_row + row) * query_stride + head * query_head;
  key += head / heads_per_key_head * key_strides[head_axis];
  value += head / heads_per_key_head * value_strides[head_axis];
  block_tables += tiles[0] * longest;
  num_visible += (first_row + row) * more_keys;  // of the lane's row

  threadgroup T* value_tile = memory + KEYS * (D + PADDING);
  threadgroup float* score_tile = score_memory + first_row * STRIDE;
  threadgroup T* weight_tile = reinterpret_cast<threadgroup T*>(score_tile);
  threadgroup float* factor_tile = score_tile + ROWS * STRIDE / 2;  // behind the weights
  threadgroup float* own_scores = score_tile + row * STRIDE + side;  // 4 of 8, and again
  threadgroup T* own_weights = weight_tile + row * STRIDE + side;

  simdgroup_matrix<T, 8, 8> queries[BLOCKS][D / 8];
  simdgroup_matrix<float, 8, 8> sums[BLOCKS][D / 8];
  load_queries<T, D>(query, memory, num_queries, query_stride, thread_number);
  threadgroup_barrier(mem_flags::mem_threadgroup);  // the queries are complete
  for (int i = 0; i < BLOCKS; i++)
    for (int k = 0; k < D / 8; k++) {
      simdgroup_load(queries[i][k], memory + (first_row + 8 * i) * (D + PADDING) + 8 * k, D + PADDING);
      sums[i][k] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  threadgroup_barrier(mem_flags::mem_threadgroup);  // they are in registers

  float maximum = -INFINITY, total = 0.0f;  // of the lane's row
  for (int first_key = 0; first_key < num_keys; first_key += KEYS) {
    load_tokens<T, D>(
        key, block_tables, memory, key_strides, head_axis, block_size, first_key, num_keys, thread_number);
    load_tokens<T, D>(
        value, block_tables, value_tile, value_strides, head_axis, block_size, first_key, num_keys, thread_number);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the tiles are complete
    for (int j = 0; j < KEYS; j += 8) {
      simdgroup_matrix<float, 8, 8> products[BLOCKS];
      for (int i = 0; i < BLOCKS; i++) products[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      for (int k = 0; k < D / 8; k++) {
        simdgroup_matrix<T, 8, 8> keys;
        simdgroup_load(keys, memory + j * (D + PADDING) + 8 * k, D + PADDING, 0, true);
        for (int i = 0; i < BLOCKS; i++)
          simdgroup_multiply_accumulate(products[i], queries[i][k], keys, products[i]);
      }
      for (int i = 0; i < BLOCKS; i++) simdgroup_store(products[i], score_tile + 8 * i * STRIDE + j, STRIDE);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);  // the scores are complete

    alignas(16) float scores[KEYS / 2];
    float largest = maximum;
    for (int i = 0; i < KEYS / 2; i += 4) {
      *reinterpret_cast<thread float4*>(scores + i) = *reinterpret_cast<threadgroup float4*>(own_scores + 2 * i);
      for (int e = 0; e < 4; e++) {
        bool is_seen = first_key + 2 * i + side + e < min(num_visible, num_keys);
        scores[i + e] = is_seen ? scores[i + e] * scale : -INFINITY;
        largest = max(largest, scores[i + e]);
      }
    }
    largest = max(largest, simd_shuffle_xor(largest, 1));  // every row sees the first key: it is a number
    float shrink = exp(maximum - largest), added = 0.0f;
    simdgroup_barrier(mem_flags::mem_threadgroup);  // the scores are in registers
    for (int i = 0; i < KEYS / 2; i += 4) {
      alignas(8) T weights[4];
      for (int e = 0; e < 4; e++) {
        weights[e] = T(exp(scores[i + e] - largest));
        added += float(weights[e]);
      }
      *reinterpret_cast<threadgroup uint2*>(own_weights + 2 * i) = *reinterpret_cast<thread uint2*>(weights);
    }
    *reinterpret_cast<threadgroup float4*>(factor_tile + row * 8 + side) = float4(shrink);
    maximum = largest;
    total = total * shrink + added + simd_shuffle_xor(added, 1);
    simdgroup_barrier(mem_flags::mem_threadgroup);  // weights and factors are complete

    for (int i = 0; i < BLOCKS; i++) {
      simdgroup_matrix<float, 8, 8> factors;
      simdgroup_load(factors, factor_tile + 8 * i * 8, 8);
      for (int k = 0; k < D / 8; k++)
        for (int e = 0; e < 2; e++) sums[i][k].thread_elements()[e] *= factors.thread_elements()[e];
    }
    for (int j = 0; j < KEYS; j += 8) {
      simdgroup_matrix<T, 8, 8> weights[BLOCKS];
      for (int i = 0; i < BLOCKS; i++) simdgroup_load(weights[i], weight_tile + 8 * i * STRIDE + j, STRIDE);
      for (int k = 0; k < D / 8; k++) {
        simdgroup_matrix<T, 8, 8> values;
        simdgroup_load(values, value_tile + j * (D + PADDING) + 8 * k, D + PADDING);
        for (int i = 0; i < BLOCKS; i++) simdgroup_multiply_accumulate(sums[i][k], weights[i], values, sums[i][k]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // no thread needs the tiles any more
  }

  for (int first_dim = 0; first_dim < D; first_dim += KEYS) {  // by way of the scores' memory
    for (int i = 0; i < BLOCKS; i++)
      for (int j = 0; j < KEYS; j += 8)
        simdgroup_store(sums[i][(first_dim + j) / 8], score_tile + 8 * i * STRIDE + j, STRIDE);
    simdgroup_barrier(mem_flags::mem_threadgroup);  // the sums are complete
    for (int i = 0; i < KEYS && first_row + row < num_queries; i += 8) {
      alignas(16) float entries[4];
      alignas(8) T results[4];
      *reinterpret_cast<thread float4*>(entries) = *reinterpret_cast<threadgroup float4*>(own_scores + i);
      for (int e = 0; e < 4; e++) results[e] = T(entries[e] / total);
      *reinterpret_cast<device uint2*>(out + first_dim + i + side) = *reinterpret_cast<thread uint2*>(results);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);  // no lane needs them any more
  }
}
