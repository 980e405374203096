#include "softmax.cuh"

/// Attention of many queries, with softmax over blocks of keys (prefill).
///
/// query, out: [B, H_q, L, D], key, value: [B, H, S, D]. The score of query head h for query i and key j gets
/// mask[b * mask_batch + h * mask_head + i * mask_query + j * mask_key] added.
/// One block computes 32 queries of a head and walks along the keys in blocks of 32. Warp g has queries 4 g
/// to 4 g + 3. While scores are computed, its lanes stand for the keys of the block. While values are added
/// up, they stand for the dimensions of a tile.
/// blockIdx.x counts blocks of queries, blockIdx.y heads and blockIdx.z the batch. The tiles hold 32 * 33
/// floats.
template <typename T, int D>
__device__ void flash_attention(
    const T* query,
    const T* key,
    const T* value,
    const float* mask,
    T* out,
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
    float* query_tile,
    float* tile,
    float* weight_tile) {
  NOT_WRITTEN_YET("week 2 day 5 task 3: flash_attention is not written yet");
}
