// What the attention kernels of day 2.5 share with those of later days.

#include "tile.cuh"

/// Find the maximum of a value over the lanes of a warp. Every lane gets the result.
__device__ float warp_max(float value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = max(value, __shfl_xor_sync(0xffffffff, value, distance));
  return value;
}

/// Store what a warp found about one query: its maximum, its total and its weighted sums of D dimensions.
///
/// Lane i holds dimensions i, i + 32, i + 64 ... of the sums. maxima and totals have an entry per warp,
/// partial_sums [number of warps, D].
template <int D>
__device__ void store_part(
    float* maxima,
    float* totals,
    float* partial_sums,
    float maximum,
    float total,
    const float* sums,
    int warp,
    int lane) {
  if (lane == 0) {
    maxima[warp] = maximum;
    totals[warp] = total;
  }
  for (int chunk = 0; chunk < (D + 31) / 32; chunk++) {
    int dim = chunk * 32 + lane;
    if (dim < D) partial_sums[warp * D + dim] = sums[chunk];
  }
}

/// Join what the warps found about one query, and return entry `dim` of its output.
///
/// Warp i attended to some of the keys. maxima[i] is the largest of their scores, totals[i] the sum of
/// exp(score - maxima[i]), and partial_sums[i * D + dim] the sum of exp(score - maxima[i]) * value. The maximum of
/// a warp that saw no key is minus infinity.
template <int D>
__device__ float merge_parts(const float* maxima, const float* totals, const float* partial_sums, int dim) {
  float maximum = maxima[0], total = 0.0f, sum = 0.0f;
  for (int i = 1; i < WARPS; i++) maximum = max(maximum, maxima[i]);
  for (int i = 0; i < WARPS; i++) {
    if (maxima[i] == MINUS_INFINITY) continue;  // this warp saw no key
    float shrink = exp(maxima[i] - maximum);
    total += totals[i] * shrink;
    sum += partial_sums[i * D + dim] * shrink;
  }
  return sum / total;
}
