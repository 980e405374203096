#include <metal_stdlib>
using namespace metal;

/// Product of a few rows with packed weights, transposed: decode.
///
/// x: [M, K], weights: [N, K * bits / 32], scales and biases: [N, K / group_size], out: [M, N].
/// One SIMD group computes one column of out for 8 rows. Its lanes share out the words of the weights:
/// lane 0 takes words 0, 32, 64 ..., lane 1 takes 1, 33, 65 ...; at the end they add up their sums.
/// group.x counts fours of columns, one for each SIMD group of a threadgroup; group.y counts eights of rows.
template <typename T, int bits, int group_size>
void quantized_matvec(
    const device T* x,
    const device uint* weights,
    const device T* scales,
    const device T* biases,
    device T* out,
    int M,
    int N,
    int K,
    uint3 group,
    uint simd_group,
    uint lane) {
  NOT_WRITTEN_YET("week 2 day 3 task 4: quantized_matvec is not written yet");
}
