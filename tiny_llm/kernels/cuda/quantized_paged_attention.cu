#include "softmax.cuh"

/// Attention of many queries to keys in quantized blocks and in tails of floats, with softmax over 32 keys at a
/// time (prefill chunks).
///
/// query, out: [number of queries, H_q, D], key, value: [num_blocks, block_size, H, words per head], tail_key,
/// tail_value: [number of tails, block_size, H, D], block_tables: [N, longest], tails: [number of queries].
/// A query that sees n keys reads the first n / block_size * block_size of them from quantized blocks: key j of
/// sequence s is in block block_tables[s * longest + j / block_size], at place j % block_size. It reads the
/// others from its tail. Codes have key_bits and value_bits bits, 4 or 8.
/// tiles: [number of tiles, 4]. The four numbers are the tile's sequence, its first query, its number of
/// queries, and the number of keys that the first query sees. Each further query sees one key more.
/// One block computes a tile for a head and walks along the keys. Warp g has queries 4 g to 4 g + 3 of the
/// tile. While scores are computed, its lanes stand for keys. While values are added up, they stand for the
/// dimensions of a tile in shared memory.
/// blockIdx.x counts tiles and blockIdx.y heads. The tiles hold 32 * 33 floats.
template <typename T, int D>
__device__ void quantized_paged_attention(
    const T* query,
    const unsigned* key,
    const unsigned* value,
    const T* tail_key,
    const T* tail_value,
    const int* block_tables,
    const int* tails,
    const int* tiles,
    T* out,
    int H_q,
    int H,
    int block_size,
    int longest,
    int key_bits,
    int value_bits,
    float scale,
    float* query_tile,
    float* tile,
    float* weight_tile) {
  NOT_WRITTEN_YET("week 4 day 1 task 7: quantized_paged_attention is not written yet");
}
