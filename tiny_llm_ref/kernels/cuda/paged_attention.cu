#include "softmax.cuh"

constexpr int ROWS = TILE / WARPS;  // of a tile, per warp

/// Load keys or values into a tile, from token `first_key` and dimension `first_dim` on. The block table tells where
/// a token is. Beyond the last key or dimension are zeros.
template <typename T, int D>
__device__ void load_block(
    float* tile,
    const T* x,
    const int* block_table,
    int block_size,
    int num_keys,
    int first_key,
    int stride,
    int first_dim) {
  for (int i = threadIdx.x; i < TILE * TILE; i += WARPS * 32) {
    int j = first_key + i / TILE, dim = i % TILE;
    bool is_inside = j < num_keys && first_dim + dim < D;
    int place = is_inside ? block_table[j / block_size] * block_size + j % block_size : 0;
    tile[i / TILE * TILE_STRIDE + dim] = is_inside ? float(x[place * stride + first_dim + dim]) : 0.0f;
  }
}

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
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int head = blockIdx.y;
  tiles += blockIdx.x * 4;
  int key_head = head / (H_q / H);
  int num_queries = tiles[2], num_visible = tiles[3];  // keys seen by the first query
  query += (tiles[1] * H_q + head) * D;
  out += (tiles[1] * H_q + head) * D;
  key += key_head * D;
  value += key_head * D;
  block_tables += tiles[0] * longest;

  int first_row = warp * ROWS;  // the warp's first query within the tile
  constexpr int num_chunks = (D + TILE - 1) / TILE;
  float maximum[ROWS], total[ROWS] = {}, sums[ROWS][num_chunks] = {};
  for (int i = 0; i < ROWS; i++) maximum[i] = MINUS_INFINITY;

  int num_keys = num_visible + num_queries - 1;  // seen by the last query
  for (int first_key = 0; first_key < num_keys; first_key += TILE) {
    float scores[ROWS] = {};
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int first_dim = chunk * TILE;
      load_tile<T>(query_tile, query + first_dim, H_q * D, num_queries, D - first_dim);
      load_block<T, D>(tile, key, block_tables, block_size, num_keys, first_key, H * D, first_dim);
      __syncthreads();
      for (int dim = 0; dim < TILE; dim++) {
        float entry = tile[lane * TILE_STRIDE + dim];
        for (int i = 0; i < ROWS; i++) scores[i] += query_tile[(first_row + i) * TILE_STRIDE + dim] * entry;
      }
      __syncthreads();
    }

    int j = first_key + lane;
    for (int i = 0; i < ROWS; i++) {
      bool is_seen = j < min(num_keys, num_visible + first_row + i);
      float score = is_seen ? scores[i] * scale : MINUS_INFINITY;
      float new_maximum = max(maximum[i], warp_max(score));
      float shrink = exp(maximum[i] - new_maximum);
      float weight = exp(score - new_maximum);
      maximum[i] = new_maximum;
      total[i] = total[i] * shrink + warp_sum(weight);
      for (int chunk = 0; chunk < num_chunks; chunk++) sums[i][chunk] *= shrink;
      weight_tile[(first_row + i) * TILE_STRIDE + lane] = weight;
    }

    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int first_dim = chunk * TILE;
      load_block<T, D>(tile, value, block_tables, block_size, num_keys, first_key, H * D, first_dim);
      __syncthreads();
      for (int k = 0; k < TILE; k++) {
        float entry = tile[k * TILE_STRIDE + lane];
        for (int i = 0; i < ROWS; i++) sums[i][chunk] += weight_tile[(first_row + i) * TILE_STRIDE + k] * entry;
      }
      __syncthreads();
    }
  }

  for (int i = 0; i < ROWS; i++) {
    int row = first_row + i;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int dim = chunk * TILE + lane;
      if (row < num_queries && dim < D) out[row * H_q * D + dim] = T(sums[i][chunk] / total[i]);
    }
  }
}
