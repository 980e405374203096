#include "softmax.h"

/// Attention of few queries to many keys (decode).
///
/// query, out: [B, H_q, L, D], key, value: [B, H, S, D]. key and value may be parts of a larger cache:
/// key_strides and value_strides are the distances between entries along each of the four axes. The score of
/// query head h for query i and key j gets
/// mask[b * mask_batch + h * mask_head + i * mask_query + j * mask_key] added.
/// One threadgroup computes one query of a head. SIMD group g attends to keys g, g + 8, g + 16 ... Its lanes
/// divide the dimensions among themselves: lane 0 takes 0, 32, 64 ... At the end, the SIMD groups combine
/// their maxima, totals and sums through threadgroup memory, and thread d writes dimension d.
/// group.x counts queries, group.y heads and group.z the batch. maxima and totals hold 8 floats, partial_sums
/// 8 * D.
template <typename T, int D>
void flash_decode(
    const device T* query,
    const device T* key,
    const device T* value,
    const device float* mask,
    device T* out,
    const constant int64_t* key_strides,
    const constant int64_t* value_strides,
    int H_q,
    int H,
    int L,
    int S,
    int is_causal,
    int mask_batch,
    int mask_head,
    int mask_query,
    int mask_key,
    float scale,
    threadgroup float* maxima,
    threadgroup float* totals,
    threadgroup float* partial_sums,
    uint3 group,
    uint simd_group,
    uint lane) {
  int batch = int(group.z), head = int(group.y), row = int(group.x);
  int key_head = head / (H_q / H);
  query += ((batch * H_q + head) * L + row) * D;
  out += ((batch * H_q + head) * L + row) * D;
  key += batch * key_strides[0] + key_head * key_strides[1];
  value += batch * value_strides[0] + key_head * value_strides[1];
  mask += batch * mask_batch + head * mask_head + row * mask_query;

  constexpr int num_chunks = (D + 31) / 32;
  float own_query[num_chunks], sums[num_chunks] = {};
  for (int chunk = 0; chunk < num_chunks; chunk++) {
    int dim = chunk * 32 + int(lane);
    own_query[chunk] = dim < D ? float(query[dim]) * scale : 0.0f;
  }

  float maximum = -INFINITY, total = 0.0f;
  int num_keys = is_causal ? S - L + row + 1 : S;
  for (int j = int(simd_group); j < num_keys; j += SIMD_GROUPS) {
    float product = 0.0f;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int dim = chunk * 32 + int(lane);
      if (dim < D) product += own_query[chunk] * float(key[j * key_strides[2] + dim * key_strides[3]]);
    }
    float score = simd_sum(product) + mask[j * mask_key];
    if (score == -INFINITY) continue;  // hidden; the same for all lanes
    float new_maximum = max(maximum, score);
    float shrink = exp(maximum - new_maximum);
    float weight = exp(score - new_maximum);
    maximum = new_maximum;
    total = total * shrink + weight;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int dim = chunk * 32 + int(lane);
      if (dim >= D) continue;
      sums[chunk] = sums[chunk] * shrink + weight * float(value[j * value_strides[2] + dim * value_strides[3]]);
    }
  }

  store_part<D>(maxima, totals, partial_sums, maximum, total, sums, simd_group, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  int dim = int(simd_group) * 32 + int(lane);
  if (dim < D) out[dim] = T(merge_parts<D>(maxima, totals, partial_sums, dim));
}
