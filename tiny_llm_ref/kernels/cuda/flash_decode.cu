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
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int batch = blockIdx.z, head = blockIdx.y, row = blockIdx.x;
  int key_head = head / (H_q / H);
  query += ((batch * H_q + head) * L + row) * D;
  out += ((batch * H_q + head) * L + row) * D;
  key += batch * key_strides[0] + key_head * key_strides[1];
  value += batch * value_strides[0] + key_head * value_strides[1];
  mask += batch * mask_batch + head * mask_head + row * mask_query;

  constexpr int num_chunks = (D + 31) / 32;
  float own_query[num_chunks], sums[num_chunks] = {};
  for (int chunk = 0; chunk < num_chunks; chunk++) {
    int dim = chunk * 32 + lane;
    own_query[chunk] = dim < D ? float(query[dim]) * scale : 0.0f;
  }

  float maximum = MINUS_INFINITY, total = 0.0f;
  int num_keys = is_causal ? S - L + row + 1 : S;
  for (int j = warp; j < num_keys; j += WARPS) {
    float product = 0.0f;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int dim = chunk * 32 + lane;
      if (dim < D) product += own_query[chunk] * float(key[j * key_strides[2] + dim * key_strides[3]]);
    }
    float score = warp_sum(product) + mask[j * mask_key];
    if (score == MINUS_INFINITY) continue;  // hidden; the same for all lanes
    float new_maximum = max(maximum, score);
    float shrink = exp(maximum - new_maximum);
    float weight = exp(score - new_maximum);
    maximum = new_maximum;
    total = total * shrink + weight;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      int dim = chunk * 32 + lane;
      if (dim >= D) continue;
      sums[chunk] = sums[chunk] * shrink + weight * float(value[j * value_strides[2] + dim * value_strides[3]]);
    }
  }

  store_part<D>(maxima, totals, partial_sums, maximum, total, sums, warp, lane);
  __syncthreads();

  int dim = threadIdx.x;
  if (dim < D) out[dim] = T(merge_parts<D>(maxima, totals, partial_sums, dim));
}
