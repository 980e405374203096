#include "softmax.cuh"

/// Attention of few queries to many keys (decode).
///
/// query, out: [B, H_q, L, D], key, value: [B, H, S, D]. key and value may be parts of a larger cache:
/// key_strides and value_strides are the distances between entries along each of the four axes. The score of
/// query head h for query i and key j gets
/// mask[b * mask_batch + h * mask_head + i * mask_query + j * mask_key] added.
/// One block computes one query of a head. Warp g attends to keys g, g + 8, g + 16 ... Its lanes divide the
/// dimensions among themselves: lane 0 takes 0, 32, 64 ... At the end, the warps combine their maxima, totals
/// and sums through shared memory, and thread d writes dimension d.
/// blockIdx.x counts queries, blockIdx.y heads and blockIdx.z the batch. maxima and totals hold 8 floats,
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
