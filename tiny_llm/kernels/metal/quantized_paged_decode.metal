#include "softmax.h"

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
  NOT_WRITTEN_YET("week 4 day 1 task 6: quantized_paged_decode is not written yet");
}
