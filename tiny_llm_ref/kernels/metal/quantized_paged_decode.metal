#include "softmax.h"

/// Entry `dim` of a quantized head: D codes of `bits` bits, then one word per group, with the scale in its lower
/// half and the bias in its upper half, both float16.
template <int D>
float entry_of(const device uint* head, int dim, int bits) {
  constexpr int group_size = D % 64 == 0 ? 64 : 32;
  int first_bit = dim * bits;
  uint code = code_at(head[first_bit / 32], first_bit % 32, bits);
  half2 grid = as_type<half2>(head[D * bits / 32 + dim / group_size]);
  return float(grid.x) * float(code) + float(grid.y);
}

/// Attention of single queries to keys in quantized blocks and in tails of floats (decode).
///
/// query, out: [number of queries, H_q, D], key, value: [num_blocks, block_size, H, words per head], tail_key,
/// tail_value: [number of tails, block_size, H, D], block_tables: [N, longest]. Query i belongs to sequence
/// sequences[i] and sees the first num_keys[i] keys. Of these, the ones that fill whole blocks are quantized: key
/// j of sequence s is in block block_tables[s * longest + j / block_size], at place j % block_size. The
/// others are in tail tails[i], at place j % block_size.
/// Codes have key_bits and value_bits bits, 4 or 8.
/// One threadgroup computes one query of a head. SIMD group g attends to keys g, g + 8, g + 16 ... Its lanes
/// divide the dimensions among themselves: lane 0 takes 0, 32, 64 ... At the end, the SIMD groups combine
/// their maxima, totals and sums through threadgroup memory, and thread d writes dimension d.
/// group.x counts queries and group.y heads. maxima and totals hold 8 floats, partial_sums 8 * D.
template <typename T, int D>
void quantized_paged_decode(
    const device T* query,
    const device uint* key,
    const device uint* value,
    const device T* tail_key,
    const device T* tail_value,
    const device int* block_tables,
    const device int* tails,
    const device int* sequences,
    const device int* num_keys,
    device T* out,
    int H_q,
    int H,
    int block_size,
    int longest,
    int key_bits,
    int value_bits,
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

  int num_full = num_keys[row] / block_size * block_size;  // tokens in full blocks
  constexpr int num_grids = D % 64 == 0 ? D / 64 : D / 32;
  int key_words = D * key_bits / 32 + num_grids, value_words = D * value_bits / 32 + num_grids;
  float maximum = -INFINITY, total = 0.0f;
  for (int j = int(simd_group); j < num_keys[row]; j += SIMD_GROUPS) {
    bool is_full = j < num_full;
    int block = is_full ? block_tables[j / block_size] : tails[row];
    int place = (block * block_size + j % block_size) * H + key_head;
    float product = 0.0f;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int dim = chunk * 32 + int(lane);
      if (dim < D) {
        float entry = is_full ? entry_of<D>(key + place * key_words, dim, key_bits) : float(tail_key[place * D + dim]);
        product += own_query[chunk] * entry;
      }
    }
    float score = simd_sum(product);
    float new_maximum = max(maximum, score);
    float shrink = exp(maximum - new_maximum);
    float weight = exp(score - new_maximum);
    maximum = new_maximum;
    total = total * shrink + weight;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int dim = chunk * 32 + int(lane);
      if (dim < D) {
        float entry =
            is_full ? entry_of<D>(value + place * value_words, dim, value_bits) : float(tail_value[place * D + dim]);
        sums[chunk] = sums[chunk] * shrink + weight * entry;
      }
    }
  }

  store_part<D>(maxima, totals, partial_sums, maximum, total, sums, simd_group, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  int dim = int(simd_group) * 32 + int(lane);
  if (dim < D) out[dim] = T(merge_parts<D>(maxima, totals, partial_sums, dim));
}
