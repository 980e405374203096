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
  NOT_WRITTEN_YET("week 3 day 3 task 6: paged_decode is not written yet");
}
