#include "kernel.h"

/// Expand packed weights, for products with so many rows that a BLAS is faster.
///
/// inputs:  weight uint32 [N, K * bits / 32]; scales and biases float32 [N, K / group_size]
/// outputs: float32 [N, K]
/// numbers: bits (4 or 8), group_size
KERNEL dequantize(const Array* inputs, const Array* outputs, const double* numbers) {
  const uint8_t* packed = inputs[0].data<uint8_t>();
  const float* scales = inputs[1].data<float>();
  const float* biases = inputs[2].data<float>();
  float* output = outputs[0].data<float>();
  const long N = outputs[0].length(0), K = outputs[0].length(1);
  const long bits = numbers[0], group_size = numbers[1], num_groups = K / group_size;

  parallel_for(N * num_groups, 256, [&](long first, long last) {
    for (long group = first; group < last; group++) {
      const float scale = scales[group], bias = biases[group];
      const uint8_t* source = packed + group * group_size * bits / 8;
      float* target = output + group * group_size;
      if (bits == 4) {
        for (long i = 0; i < group_size / 2; i++) {
          target[2 * i] = scale * (source[i] & 15) + bias;
          target[2 * i + 1] = scale * (source[i] >> 4) + bias;
        }
      } else {
        for (long i = 0; i < group_size; i++) target[i] = scale * source[i] + bias;
      }
    }
  });
}
