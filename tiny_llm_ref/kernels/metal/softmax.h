// What the attention kernels of day 2.5 share with those of later days.

#include "tile.h"

/// Store what a SIMD group found about one query: its maximum, its total and its weighted sums of D dimensions.
///
/// Lane i holds dimensions i, i + 32, i + 64 ... of the sums. maxima and totals have an entry per SIMD group,
/// partial_sums [number of SIMD groups, D].
template <int D>
void store_part(
    threadgroup float* maxima,
    threadgroup float* totals,
    threadgroup float* partial_sums,
    float maximum,
    float total,
    const thread float* sums,
    int simd_group,
    int lane) {
  if (lane == 0) {
    maxima[simd_group] = maximum;
    totals[simd_group] = total;
  }
  for (int chunk = 0; chunk < (D + 31) / 32; chunk++) {
    int dim = chunk * 32 + lane;
    if (dim < D) partial_sums[simd_group * D + dim] = sums[chunk];
  }
}

/// Join what the SIMD groups found about one query, and return entry `dim` of its output.
///
/// SIMD group i attended to some of the keys. maxima[i] is the largest of their scores, totals[i] the sum of
/// exp(score - maxima[i]), and partial_sums[i * D + dim] the sum of exp(score - maxima[i]) * value. The maximum of
/// a SIMD group that saw no key is minus infinity.
template <int D>
float merge_parts(
    const threadgroup float* maxima,
    const threadgroup float* totals,
    const threadgroup float* partial_sums,
    int dim) {
  float maximum = maxima[0], total = 0.0f, sum = 0.0f;
  for (int i = 1; i < SIMD_GROUPS; i++) maximum = max(maximum, maxima[i]);
  for (int i = 0; i < SIMD_GROUPS; i++) {
    if (maxima[i] == -INFINITY) continue;  // this SIMD group saw no key
    float shrink = exp(maxima[i] - maximum);
    total += totals[i] * shrink;
    sum += partial_sums[i * D + dim] * shrink;
  }
  return sum / total;
}
