#include <metal_stdlib>
using namespace metal;

/// Attention of many queries to keys in blocks, softmax over 32 keys at a time: prefill chunks.
///
/// query, out: [number of queries, H_q, D], key, value: [num_blocks, block_size, H, D], block_tables:
/// [N, longest]; key j of sequence s lies in block block_tables[s * longest + j / block_size], at
/// j % block_size. tiles: [number of tiles, 4]; of each its sequence, the first of its queries, how many, and
/// how many keys the first one sees. Each of the others sees one more than the one before.
/// One threadgroup computes a tile for a head and walks along the keys. SIMD group g has queries 4 g to 4 g + 3
/// of it. While scores are computed its lanes stand for keys, while values are added up for the dimensions of
/// a tile in shared memory.
/// group.x counts tiles, group.y heads. The tiles hold 32 * 33 floats.
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
