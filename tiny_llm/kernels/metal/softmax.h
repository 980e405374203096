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
  NOT_WRITTEN_YET("week 2 day 5 task 2: store_part is not written yet");
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
  NOT_WRITTEN_YET("week 2 day 5 task 2: merge_parts is not written yet");
}
