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
  NOT_WRITTEN_YET("week 2 day 5 task 2: flash_decode is not written yet");
}
