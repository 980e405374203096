#include "tile.h"

constexpr constant int ROWS = TILE / SIMD_GROUPS;  // of a tile, per SIMD group

/// Attention of many queries, with softmax over blocks of keys (prefill).
///
/// query, out: [B, H_q, L, D], key, value: [B, H, S, D]. The score of query head h for query i and key j gets
/// mask[b * mask_batch + h * mask_head + i * mask_query + j * mask_key] added.
/// One threadgroup computes 32 queries of a head and walks along the keys in blocks of 32. SIMD group g has
/// queries 4 g to 4 g + 3. While scores are computed, its lanes stand for the keys of the block. While values
/// are added up, they stand for the dimensions of a tile.
/// group.x counts blocks of queries, group.y heads and group.z the batch. The tiles hold 32 * 33 floats.
template <typename T, int D>
void flash_attention(
    const device T* query,
    const device T* key,
    const device T* value,
    const device float* mask,
    device T* out,
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
    threadgroup float* query_tile,
    threadgroup float* tile,
    threadgroup float* weight_tile,
    uint3 group,
    uint simd_group,
    uint lane) {
  int batch = int(group.z), head = int(group.y), first_query = int(group.x) * TILE;
  int key_head = head / (H_q / H);
  query += (batch * H_q + head) * L * D;
  out += (batch * H_q + head) * L * D;
  key += (batch * H + key_head) * S * D;
  value += (batch * H + key_head) * S * D;
  mask += batch * mask_batch + head * mask_head;

  int thread_number = int(simd_group) * 32 + int(lane);
  int first_row = int(simd_group) * ROWS;  // the SIMD group's first query within the tile
  constexpr int num_chunks = (D + TILE - 1) / TILE;
  float maximum[ROWS], total[ROWS] = {}, sums[ROWS][num_chunks] = {};
  for (int i = 0; i < ROWS; i++) maximum[i] = -INFINITY;

  // Under the causal mask, the last query of the block sees the most keys.
  int num_keys = is_causal ? min(S, S - L + first_query + TILE) : S;
  for (int first_key = 0; first_key < num_keys; first_key += TILE) {
    float scores[ROWS] = {};
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int first_dim = chunk * TILE;
      load_tile<T>(query_tile, query + first_query * D + first_dim, D, L - first_query, D - first_dim, thread_number);
      load_tile<T>(tile, key + first_key * D + first_dim, D, S - first_key, D - first_dim, thread_number);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int dim = 0; dim < TILE; dim++) {
        float entry = tile[int(lane) * TILE_STRIDE + dim];
        for (int i = 0; i < ROWS; i++) scores[i] += query_tile[(first_row + i) * TILE_STRIDE + dim] * entry;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    int j = first_key + int(lane);
    for (int i = 0; i < ROWS; i++) {
      int row = first_query + first_row + i;
      bool is_seen = row < L && j < S && (!is_causal || j <= row + S - L);
      float score = is_seen ? scores[i] * scale + mask[row * mask_query + j * mask_key] : -INFINITY;
      float new_maximum = max(maximum[i], simd_max(score));
      // The maximum of a row that has seen no key yet is -inf, and -inf minus -inf is NaN.
      float reference = new_maximum == -INFINITY ? 0.0f : new_maximum;
      float shrink = exp(maximum[i] - reference);
      float weight = exp(score - reference);
      maximum[i] = new_maximum;
      total[i] = total[i] * shrink + simd_sum(weight);
      for (int chunk = 0; chunk < num_chunks; chunk++) sums[i][chunk] *= shrink;
      weight_tile[(first_row + i) * TILE_STRIDE + int(lane)] = weight;
    }

    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int first_dim = chunk * TILE;
      load_tile<T>(tile, value + first_key * D + first_dim, D, S - first_key, D - first_dim, thread_number);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int k = 0; k < TILE; k++) {
        float entry = tile[k * TILE_STRIDE + int(lane)];
        for (int i = 0; i < ROWS; i++) sums[i][chunk] += weight_tile[(first_row + i) * TILE_STRIDE + k] * entry;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }

  for (int i = 0; i < ROWS; i++) {
    int row = first_query + first_row + i;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int dim = chunk * TILE + int(lane);
      if (row < L && dim < D) out[row * D + dim] = T(sums[i][chunk] / total[i]);
    }
  }
}
