// What the attention kernels of day 2.5 share with those of later days.

#include "tile.cuh"

/// Find the maximum of a value over the lanes of a warp. Every lane gets the result.
__device__ float warp_max(float value) {
  NOT_WRITTEN_YET("week 2 day 5 task 3: warp_max is not written yet");
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
  NOT_WRITTEN_YET("week 2 day 5 task 3: store_part is not written yet");
}

/// Join what the warps found about one query, and return entry `dim` of its output.
///
/// Warp i attended to some of the keys. maxima[i] is the largest of their scores, totals[i] the sum of
/// exp(score - maxima[i]), and partial_sums[i * D + dim] the sum of exp(score - maxima[i]) * value. The maximum of
/// a warp that saw no key is minus infinity.
template <int D>
__device__ float merge_parts(const float* maxima, const float* totals, const float* partial_sums, int dim) {
  NOT_WRITTEN_YET("week 2 day 5 task 3: merge_parts is not written yet");
}
