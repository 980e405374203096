#include "softmax.cuh"

constexpr int SPLIT = 256;  // keys of a split

/// Attention of single queries to keys in blocks, each block to some of the keys: decode of long contexts.
///
/// query: [number of queries, H_q, D], key, value: [num_blocks, block_size, H, D], parts of a larger cache: the
/// distances from one entry to the next along each of the four axes are key_strides and value_strides.
/// block_tables: [N, longest]. Query i belongs to sequence sequences[i] and sees its first num_keys[i] keys;
/// key j of sequence s lies in block block_tables[s * longest + j / block_size], at j % block_size. partials:
/// [number of queries, H_q, num_splits, D + 2]: the sum of values weighted by exp(score - maximum), the maximum,
/// the sum of the weights.
/// One block computes, for one query, the heads that share a key head (up to HEADS of them, as many as
/// registers hold) for a split of the keys, and so each key and value is read once. Warp g attends to keys g,
/// g + 8, g + 16 ... of the split, and its lanes share out the dimensions: lane 0 takes 0, 32, 64 ... At the
/// end the warps put their maxima, totals and sums together through shared memory, head after head.
/// blockIdx.x counts queries, blockIdx.y HEADS heads of each key head, blockIdx.z splits. maxima and totals
/// hold 8 floats, partial_sums 8 * D.
template <typename T, int D>
__device__ void split_decode(
    const T* query,
    const T* key,
    const T* value,
    const int* block_tables,
    const int* sequences,
    const int* num_keys,
    float* partials,
    const int64_t* key_strides,
    const int64_t* value_strides,
    int H_q,
    int H,
    int block_size,
    int longest,
    int num_splits,
    float scale,
    float* maxima,
    float* totals,
    float* partial_sums) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int row = blockIdx.x, split = blockIdx.z, heads_per_key_head = H_q / H;
  constexpr int HEADS = D > 128 ? 4 : 8;
  int num_parts = (heads_per_key_head + HEADS - 1) / HEADS;
  int key_head = int(blockIdx.y) / num_parts, part = int(blockIdx.y) % num_parts;
  int first_head = key_head * heads_per_key_head + part * HEADS;
  int num_heads = min(HEADS, heads_per_key_head - part * HEADS);
  query += (row * H_q + first_head) * D;
  partials += ((row * H_q + first_head) * num_splits + split) * (D + 2);
  block_tables += sequences[row] * longest;
  key += key_head * key_strides[2];
  value += key_head * value_strides[2];

  constexpr int num_chunks = (D + 31) / 32;
  float own_query[HEADS][num_chunks], sums[HEADS][num_chunks] = {}, maximum[HEADS], total[HEADS] = {};
  for (int head = 0; head < HEADS; head++) {
    maximum[head] = MINUS_INFINITY;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int dim = chunk * 32 + lane;
      bool is_inside = head < num_heads && dim < D;
      own_query[head][chunk] = is_inside ? float(query[head * D + dim]) * scale : 0.0f;
    }
  }

  int last_key = min(num_keys[row], (split + 1) * SPLIT);
  for (int j = split * SPLIT + warp; j < last_key; j += WARPS) {
    int block = block_tables[j / block_size], slot = j % block_size;
    const T* key_j = key + block * key_strides[0] + slot * key_strides[1];
    const T* value_j = value + block * value_strides[0] + slot * value_strides[1];
    float own_key[num_chunks], own_value[num_chunks];
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int dim = chunk * 32 + lane;
      own_key[chunk] = dim < D ? float(key_j[dim * key_strides[3]]) : 0.0f;
      own_value[chunk] = dim < D ? float(value_j[dim * value_strides[3]]) : 0.0f;
    }
    for (int head = 0; head < HEADS; head++) {
      if (head >= num_heads) continue;
      float product = 0.0f;
      for (int chunk = 0; chunk < num_chunks; chunk++) product += own_query[head][chunk] * own_key[chunk];
      float score = warp_sum(product);
      float new_maximum = max(maximum[head], score);
      float shrink = exp(maximum[head] - new_maximum);
      float weight = exp(score - new_maximum);
      maximum[head] = new_maximum;
      total[head] = total[head] * shrink + weight;
      for (int chunk = 0; chunk < num_chunks; chunk++)
        sums[head][chunk] = sums[head][chunk] * shrink + weight * own_value[chunk];
    }
  }

  for (int head = 0; head < HEADS; head++) {
    if (head >= num_heads) continue;
    store_part<D>(maxima, totals, partial_sums, maximum[head], total[head], sums[head], warp, lane);
    __syncthreads();
    float overall_maximum = maxima[0];
    for (int i = 1; i < WARPS; i++) overall_maximum = max(overall_maximum, maxima[i]);
    int dim = threadIdx.x;
    float overall_total = 0.0f, overall_sum = 0.0f;
    for (int i = 0; i < WARPS; i++) {
      if (maxima[i] == MINUS_INFINITY) continue;  // this warp saw no key
      float shrink = exp(maxima[i] - overall_maximum);
      overall_total += totals[i] * shrink;
      if (dim < D) overall_sum += partial_sums[i * D + dim] * shrink;
    }
    float* partial = partials + head * num_splits * (D + 2);
    if (dim < D) partial[dim] = overall_sum;
    if (dim == 0) {
      partial[D] = overall_maximum;
      partial[D + 1] = overall_total;
    }
    __syncthreads();
  }
}
