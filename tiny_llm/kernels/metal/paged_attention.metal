#include "tile.h"

/// Attention of many queries to keys in blocks, with softmax over 32 keys at a time (prefill chunks).
///
/// query, out: [number of queries, H_q, D], key, value: [num_blocks, block_size, H, D], block_tables:
/// [N, longest]. Key j of sequence s is in block block_tables[s * longest + j / block_size], at
/// place j % block_size.
/// tiles: [number of tiles, 4]. The four numbers are the tile's sequence, its first query, its number of
/// queries, and the number of keys that the first query sees. Each further query sees one key more.
/// One threadgroup computes a tile for a head and walks along the keys. SIMD group g has queries 4 g to 4 g +
/// 3 of the tile. While scores are computed, its lanes stand for keys. While values are added up, they stand
/// for the dimensions of a tile in threadgroup memory.
/// group.x counts tiles and group.y heads. The tiles hold 32 * 33 floats.
template <typename T, int D>
void paged_attention(
    const device T* query,
    const device T* key,
    const device T* value,
    const device int* block_tables,
    const device int* tiles,
    device T* out,
    int H_q,
    int H,
    int block_size,
    int longest,
    float scale,
    threadgroup float* query_tile,
    threadgroup float* tile,
    threadgroup float* weight_tile,
    uint3 group,
    uint simd_group,
    uint lane) {
  NOT_WRITTEN_YET("week 3 day 3 task 6: paged_attention is not written yet");
}
