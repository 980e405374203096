/// Attention out of what `split_decode` found for each split of the keys.
///
/// partials: [number of queries, H_q, num_splits, D + 2], of each split the sum of weighted values, the maximum
/// and the sum of the weights; out: [number of queries, H_q, D]. Thread d of a block computes dimension d.
/// blockIdx.x counts heads of all queries.
template <typename T, int D>
__device__ void merge_splits(const float* partials, T* out, int num_splits) {
  int dim = threadIdx.x;
  if (dim >= D) return;
  partials += int(blockIdx.x) * num_splits * (D + 2);
  float maximum = partials[D];  // of the first split, which has a key
  for (int i = 1; i < num_splits; i++) maximum = max(maximum, partials[i * (D + 2) + D]);
  float total = 0.0f, sum = 0.0f;
  for (int i = 0; i < num_splits; i++) {
    const float* partial = partials + i * (D + 2);
    float shrink = exp(partial[D] - maximum);
    total += partial[D + 1] * shrink;
    sum += partial[dim] * shrink;
  }
  out[int(blockIdx.x) * D + dim] = T(sum / total);
}
