#include "tile.h"

constexpr constant int ROWS = TILE / SIMD_GROUPS;  // of a tile, per SIMD group

/// Entry `dim` of a quantized head: D codes of `bits` bits, then one word per group, with the scale in its lower
/// half and the bias in its upper half, both float16.
template <int D>
float entry_of(const device uint* head, int dim, int bits) {
  constexpr int group_size = D % 64 == 0 ? 64 : 32;
  int first_bit = dim * bits;
  uint code = code_at(head[first_bit / 32], first_bit % 32, bits);
  half2 grid = as_type<half2>(head[D * bits / 32 + dim / group_size]);
  return float(grid.x) * float(code) + float(grid.y);
}

/// Load quantized keys or values of one key head into a tile, from token `first_key` and dimension `first_dim` on,
/// with zeros from token `num_keys` on. The block table tells where a token is.
template <int D>
void load_codes(
    threadgroup float* tile,
    const device uint* x,
    const device int* block_table,
    int block_size,
    int num_keys,
    int first_key,
    int words_per_token,
    int first_dim,
    int bits,
    int thread_number) {
  for (int i = thread_number; i < TILE * TILE; i += SIMD_GROUPS * 32) {
    int j = first_key + i / TILE, dim = first_dim + i % TILE;
    bool is_inside = j < num_keys && dim < D;
    int place = is_inside ? block_table[j / block_size] * block_size + j % block_size : 0;
    tile[i / TILE * TILE_STRIDE + i % TILE] = is_inside ? entry_of<D>(x + place * words_per_token, dim, bits) : 0.0f;
  }
}

/// Do the same for keys or values in tails. Token j is in the tail of query j - first_query, or of query 0 if
/// it comes before that. A token that fills its block is left out, since every query sees it quantized.
template <typename T, int D>
void load_tails(
    threadgroup float* tile,
    const device T* x,
    const device int* tails,
    int block_size,
    int num_keys,
    int first_key,
    int first_query,
    int stride,
    int first_dim,
    int thread_number) {
  for (int i = thread_number; i < TILE * TILE; i += SIMD_GROUPS * 32) {
    int j = first_key + i / TILE, dim = first_dim + i % TILE;
    bool is_inside = j < num_keys && (j + 1) % block_size != 0 && dim < D;
    int place = is_inside ? tails[max(0, j - first_query)] * block_size + j % block_size : 0;
    tile[i / TILE * TILE_STRIDE + i % TILE] = is_inside ? float(x[place * stride + dim]) : 0.0f;
  }
}

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
/// One threadgroup computes a tile for a head and walks along the keys. SIMD group g has queries 4 g to 4 g +
/// 3 of the tile. While scores are computed, its lanes stand for keys. While values are added up, they stand
/// for the dimensions of a tile in threadgroup memory.
/// group.x counts tiles and group.y heads. The tiles hold 32 * 33 floats.
template <typename T, int D>
void quantized_paged_attention(
    const device T* query,
    const device uint* key,
    const device uint* value,
    const device T* tail_key,
    const device T* tail_value,
    const device int* block_tables,
    const device int* tails,
    const device int* tiles,
    device T* out,
    int H_q,
    int H,
    int block_size,
    int longest,
    int key_bits,
    int value_bits,
    float scale,
    threadgroup float* query_tile,
    threadgroup float* tile,
    threadgroup float* weight_tile,
    uint3 group,
    uint simd_group,
    uint lane) {
  int head = int(group.y);
  tiles += int(group.x) * 4;
  int key_head = head / (H_q / H);
  int num_queries = tiles[2], num_visible = tiles[3];  // keys seen by the first query
  query += (tiles[1] * H_q + head) * D;
  out += (tiles[1] * H_q + head) * D;
  constexpr int num_grids = D % 64 == 0 ? D / 64 : D / 32;
  int key_words = D * key_bits / 32 + num_grids, value_words = D * value_bits / 32 + num_grids;
  key += key_head * key_words;
  value += key_head * value_words;
  tail_key += key_head * D;
  tail_value += key_head * D;
  block_tables += tiles[0] * longest;
  tails += tiles[1];

  int thread_number = int(simd_group) * 32 + int(lane);
  int first_row = int(simd_group) * ROWS;  // the SIMD group's first query within the tile
  constexpr int num_chunks = (D + TILE - 1) / TILE;
  float maximum[ROWS], total[ROWS] = {}, sums[ROWS][num_chunks] = {};
  for (int i = 0; i < ROWS; i++) maximum[i] = -INFINITY;

  int num_keys = num_visible + num_queries - 1;            // seen by the last query
  int num_full = num_keys / block_size * block_size;       // of these, in full blocks
  int first_tail = num_visible / block_size * block_size;  // the first key that some query sees in its tail
  int num_code_tiles = (num_full + TILE - 1) / TILE;
  // Tails begin a new tile with each block, so a query's keys are added up in one order wherever it is in the tile.
  int tiles_per_block = (block_size + TILE - 1) / TILE;
  int num_tail_tiles = (num_keys - first_tail + block_size - 1) / block_size * tiles_per_block;
  for (int step = 0; step < num_code_tiles + num_tail_tiles; step++) {
    bool is_tail = step >= num_code_tiles;
    int tail_step = step - num_code_tiles, first_key = step * TILE, last_key = num_full;
    if (is_tail) {
      int block_start = first_tail + tail_step / tiles_per_block * block_size;
      first_key = block_start + tail_step % tiles_per_block * TILE;
      last_key = min(num_keys, block_start + block_size);
    }
    float scores[ROWS] = {};
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int first_dim = chunk * TILE;
      load_tile<T>(query_tile, query + first_dim, H_q * D, num_queries, D - first_dim, thread_number);
      if (is_tail) {
        load_tails<T, D>(
            tile, tail_key, tails, block_size, last_key, first_key, num_visible - 1, H * D, first_dim, thread_number);
      } else {
        load_codes<D>(
            tile, key, block_tables, block_size, last_key, first_key, H * key_words, first_dim, key_bits, thread_number);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int dim = 0; dim < TILE; dim++) {
        float entry = tile[int(lane) * TILE_STRIDE + dim];
        for (int i = 0; i < ROWS; i++) scores[i] += query_tile[(first_row + i) * TILE_STRIDE + dim] * entry;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    int j = first_key + int(lane);
    for (int i = 0; i < ROWS; i++) {
      int num_seen = min(num_keys, num_visible + first_row + i);
      int num_seen_full = num_seen / block_size * block_size;
      bool is_seen = is_tail ? j >= num_seen_full && j < min(num_seen, last_key) : j < num_seen_full;
      float score = is_seen ? scores[i] * scale : -INFINITY;
      float new_maximum = max(maximum[i], simd_max(score));
      float shift = new_maximum == -INFINITY ? 0.0f : new_maximum;  // no key seen yet; -inf - -inf is NaN
      float shrink = exp(maximum[i] - shift);
      float weight = exp(score - shift);
      maximum[i] = new_maximum;
      total[i] = total[i] * shrink + simd_sum(weight);
      for (int chunk = 0; chunk < num_chunks; chunk++) sums[i][chunk] *= shrink;
      weight_tile[(first_row + i) * TILE_STRIDE + int(lane)] = weight;
    }

    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int first_dim = chunk * TILE;
      if (is_tail) {
        load_tails<T, D>(
            tile, tail_value, tails, block_size, last_key, first_key, num_visible - 1, H * D, first_dim, thread_number);
      } else {
        load_codes<D>(
            tile, value, block_tables, block_size, last_key, first_key, H * value_words, first_dim, value_bits,
            thread_number);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int k = 0; k < TILE; k++) {
        float entry = tile[k * TILE_STRIDE + int(lane)];
        for (int i = 0; i < ROWS; i++) sums[i][chunk] += weight_tile[(first_row + i) * TILE_STRIDE + k] * entry;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }

  for (int i = 0; i < ROWS; i++) {
    int row = first_row + i;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int dim = chunk * TILE + int(lane);
      if (row < num_queries && dim < D) out[row * H_q * D + dim] = T(sums[i][chunk] / total[i]);
    }
  }
}
