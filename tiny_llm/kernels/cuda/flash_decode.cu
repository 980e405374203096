/// Attention of few queries to many keys: decode.
///
/// query, out: [B, H_q, L, D], key, value: [B, H, S, D], parts of a larger cache: the distances from one entry
/// to the next along each of the four axes are key_strides and value_strides. mask is added to query head h's
/// score of query i and key j, from mask[b * mask_batch + h * mask_head + i * mask_query + j * mask_key].
/// One block computes one query of a head. Warp g attends to keys g, g + 8, g + 16 ..., its lanes
/// share out the dimensions: lane 0 takes 0, 32, 64 ... At the end the warps put their maxima, totals and
/// sums together through shared memory, and thread d writes dimension d.
/// blockIdx.x counts queries, blockIdx.y heads, blockIdx.z the batch. maxima and totals hold 8 floats,
/// partial_sums 8 * D.
template <typename T, int D>
__device__ void flash_decode(
    const T* query,
    const T* key,
    const T* value,
    const float* mask,
    T* out,
    const int64_t* key_strides,
    const int64_t* value_strides,
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
    float* maxima,
    float* totals,
    float* partial_sums) {
  NOT_WRITTEN_YET("week 2 day 5 task 3: flash_decode is not written yet");
}
