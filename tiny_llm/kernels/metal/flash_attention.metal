#include "tile.h"

/// Attention of many queries, with softmax over blocks of keys (prefill).
///
/// query, out: [B, H_q, L, D], key, value: [B, H, S, D]. The score of query head h for query i and key j gets
/// mask[b * mask_batch + h * mask_head + i * mask_query + j * mask_key] added.
/// One threadgroup computes 32 queries of a head and walks along the keys in blocks of 32. SIMD group g has
/// queries 4 g to 4 g + 3. While scores are computed, its lanes stand for the keys of the block. While values
/// are added up, they stand for the dimensions of a tile.
/// group.x counts blocks of queries, group.y heads and group.z the batch. The tiles hold 32 * 33 floats.
template <typename T, int D>
void flash_attention(
    const device T* query,
    const device T* key,
    const device T* value,
    const device float* mask,
    device T* out,
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
    threadgroup float* query_tile,
    threadgroup float* tile,
    threadgroup float* weight_tile,
    uint3 group,
    uint simd_group,
    uint lane) {
  NOT_WRITTEN_YET("week 2 day 5 task 2: flash_attention is not written yet");
}
