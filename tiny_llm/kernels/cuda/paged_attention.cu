#include "softmax.cuh"

/// Attention of many queries to keys in blocks, with softmax over 32 keys at a time (prefill chunks).
///
/// query, out: [number of queries, H_q, D], key, value: [num_blocks, block_size, H, D], block_tables:
/// [N, longest]. Key j of sequence s is in block block_tables[s * longest + j / block_size], at
/// place j % block_size.
/// tiles: [number of tiles, 4]. The four numbers are the tile's sequence, its first query, its number of
/// queries, and the number of keys that the first query sees. Each further query sees one key more.
/// One block computes a tile for a head and walks along the keys. Warp g has queries 4 g to 4 g + 3 of the
/// tile. While scores are computed, its lanes stand for keys. While values are added up, they stand for the
/// dimensions of a tile in shared memory.
/// blockIdx.x counts tiles and blockIdx.y heads. The tiles hold 32 * 33 floats.
template <typename T, int D>
__device__ void paged_attention(
    const T* query,
    const T* key,
    const T* value,
    const int* block_tables,
    const int* tiles,
    T* out,
    int H_q,
    int H,
    int block_size,
    int longest,
    float scale,
    float* query_tile,
    float* tile,
    float* weight_tile) {
  NOT_WRITTEN_YET("week 3 day 3 task 7: paged_attention is not written yet");
}
