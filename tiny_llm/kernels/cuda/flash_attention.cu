/// Attention of many queries, softmax over blocks of keys: prefill.
///
/// query, out: [B, H_q, L, D], key, value: [B, H, S, D]; mask is added to query head h's score of query i and
/// key j, from mask[b * mask_batch + h * mask_head + i * mask_query + j * mask_key].
/// One block computes 32 queries of a head and walks along the keys in blocks of 32. Warp g has queries
/// 4 g to 4 g + 3. While scores are computed its lanes stand for the keys of the block, while values are
/// added up for the dimensions of a tile.
/// blockIdx.x counts blocks of queries, blockIdx.y heads, blockIdx.z the batch. The tiles hold 32 * 33
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
