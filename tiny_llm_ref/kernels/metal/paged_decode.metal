#include "softmax.h"

/// Attention of single queries to keys in blocks (decode).
///
/// query, out: [number of queries, H_q, D], key, value: [num_blocks, block_size, H, D], block_tables:
/// [N, longest]. Query i belongs to sequence sequences[i] and sees the first num_keys[i] keys. Key j of
/// sequence s is in block block_tables[s * longest + j / block_size], at place j % block_size.
/// One threadgroup computes one query of a head. SIMD group g attends to keys g, g + 8, g + 16 ... Its lanes
/// divide the dimensions among themselves: lane 0 takes 0, 32, 64 ... At the end, the SIMD groups combine
/// their maxima, totals and sums through threadgroup memory, and thread d writes dimension d.
/// group.x counts queries and group.y heads. maxima and totals hold 8 floats, partial_sums 8 * D.
template <typename T, int D>
void paged_decode(
    const device T* query,
    const device T* key,
    const device T* value,
    const device int* block_tables,
    const device int* sequences,
    const device int* num_keys,
    device T* out,
    int H_q,
    int H,
    int block_size,
    int longest,
    float scale,
    threadgroup float* maxima,
    threadgroup float* totals,
    threadgroup float* partial_sums,
    uint3 group,
    uint simd_group,
    uint lane) {
  int head = int(group.y), row = int(group.x);
  int key_head = head / (H_q / H);
  query += (row * H_q + head) * D;
  out += (row * H_q + head) * D;
  block_tables += sequences[row] * longest;

  constexpr int num_chunks = (D + 31) / 32;
  float own_query[num_chunks], sums[num_chunks] = {};
  for (int chunk = 0; chunk < num_chunks; chunk++) {
    int dim = chunk * 32 + int(lane);
    own_query[chunk] = dim < D ? float(query[dim]) * scale : 0.0f;
  }

  float maximum = -INFINITY, total = 0.0f;
  for (int j = int(simd_group); j < num_keys[row]; j += SIMD_GROUPS) {
    int place = ((block_tables[j / block_size] * block_size + j % block_size) * H + key_head) * D;
    float product = 0.0f;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int dim = chunk * 32 + int(lane);
      if (dim < D) product += own_query[chunk] * float(key[place + dim]);
    }
    float score = simd_sum(product);
    float new_maximum = max(maximum, score);
    float shrink = exp(maximum - new_maximum);
    float weight = exp(score - new_maximum);
    maximum = new_maximum;
    total = total * shrink + weight;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int dim = chunk * 32 + int(lane);
      if (dim < D) sums[chunk] = sums[chunk] * shrink + weight * float(value[place + dim]);
    }
  }

  store_part<D>(maxima, totals, partial_sums, maximum, total, sums, simd_group, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  int dim = int(simd_group) * 32 + int(lane);
  if (dim < D) out[dim] = T(merge_parts<D>(maxima, totals, partial_sums, dim));
}
