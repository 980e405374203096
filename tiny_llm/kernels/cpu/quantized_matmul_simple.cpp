#include <vector>

#include "kernel.h"

/// The product of activations with packed weights, as plain loops that the compiler turns into vectors.
///
/// inputs:  x float32 [..., K]; weight uint32 [N, K * bits / 32]; scales and biases float32 [N, K / group_size]
/// outputs: float32 [..., N]
/// numbers: bits (4 or 8), group_size
///
/// The columns are shared among the threads. Each is expanded to floats once and then used by all rows of x.
/// Seen as bytes, the lowest 4 bits of a byte are the first of its two weights.
KERNEL quantized_matmul_simple(const Array* inputs, const Array* outputs, const double* numbers) {
  NOT_WRITTEN_YET("week 2 day 3 task 1: quantized_matmul_simple is not written yet");
}
