#include "softmax.cuh"

/// Attention of single queries to keys in quantized blocks and in tails of floats (decode).
///
/// query, out: [number of queries, H_q, D], key, value: [num_blocks, block_size, H, words per head], tail_key,
/// tail_value: [number of tails, block_size, H, D], block_tables: [N, longest]. Query i belongs to sequence
/// sequences[i] and sees the first num_keys[i] keys. Of these, the ones that fill whole blocks are quantized: key
/// j of sequence s is in block block_tables[s * longest + j / block_size], at place j % block_size. The
/// others are in tail tails[i], at place j % block_size.
/// Codes have key_bits and value_bits bits, 4 or 8.
/// One block computes one query of a head. Warp g attends to keys g, g + 8, g + 16 ... Its lanes divide the
/// dimensions among themselves: lane 0 takes 0, 32, 64 ... At the end, the warps combine their maxima, totals
/// and sums through shared memory, and thread d writes dimension d.
/// blockIdx.x counts queries and blockIdx.y heads. maxima and totals hold 8 floats, partial_sums 8 * D.
template <typename T, int D>
__device__ void quantized_paged_decode(
    const T* query,
    const unsigned* key,
    const unsigned* value,
    const T* tail_key,
    const T* tail_value,
    const int* block_tables,
    const int* tails,
    const int* sequences,
    const int* num_keys,
    T* out,
    int H_q,
    int H,
    int block_size,
    int longest,
    int key_bits,
    int value_bits,
    float scale,
    float* maxima,
    float* totals,
    float* partial_sums) {
  NOT_WRITTEN_YET("week 4 day 1 task 7: quantized_paged_decode is not written yet");
}
