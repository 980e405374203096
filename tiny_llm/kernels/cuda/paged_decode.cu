#include "softmax.cuh"

/// Attention of single queries to keys in blocks (decode).
///
/// query, out: [number of queries, H_q, D], key, value: [num_blocks, block_size, H, D], block_tables:
/// [N, longest]. Query i belongs to sequence sequences[i] and sees the first num_keys[i] keys. Key j of
/// sequence s is in block block_tables[s * longest + j / block_size], at place j % block_size.
/// One block computes one query of a head. Warp g attends to keys g, g + 8, g + 16 ... Its lanes divide the
/// dimensions among themselves: lane 0 takes 0, 32, 64 ... At the end, the warps combine their maxima, totals
/// and sums through shared memory, and thread d writes dimension d.
/// blockIdx.x counts queries and blockIdx.y heads. maxima and totals hold 8 floats, partial_sums 8 * D.
template <typename T, int D>
__device__ void paged_decode(
    const T* query,
    const T* key,
    const T* value,
    const int* block_tables,
    const int* sequences,
    const int* num_keys,
    T* out,
    int H_q,
    int H,
    int block_size,
    int longest,
    float scale,
    float* maxima,
    float* totals,
    float* partial_sums) {
  NOT_WRITTEN_YET("week 3 day 3 task 7: paged_decode is not written yet");
}
