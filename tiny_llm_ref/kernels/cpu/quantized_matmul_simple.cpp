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
  const float* x = inputs[0].data<float>();
  const uint8_t* weight = inputs[1].data<uint8_t>();
  const float* scales = inputs[2].data<float>();
  const float* biases = inputs[3].data<float>();
  float* output = outputs[0].data<float>();
  const long M = inputs[0].size() / inputs[0].length(-1), K = inputs[0].length(-1), N = inputs[1].length(0);
  const long bits = numbers[0], group_size = numbers[1], num_groups = K / group_size;

  parallel_for(N, 16, [&](long first, long last) {
    std::vector<float> column(K);
    for (long n = first; n < last; n++) {
      const uint8_t* packed = weight + n * K * bits / 8;
      if (bits == 4) {
        for (long i = 0; i < K / 2; i++) {
          column[2 * i] = packed[i] & 15;
          column[2 * i + 1] = packed[i] >> 4;
        }
      } else {
        for (long k = 0; k < K; k++) column[k] = packed[k];
      }
      for (long group = 0; group < num_groups; group++) {
        const float scale = scales[n * num_groups + group], bias = biases[n * num_groups + group];
        float* values = &column[group * group_size];
        for (long i = 0; i < group_size; i++) values[i] = scale * values[i] + bias;
      }
      for (long m = 0; m < M; m++) {
        float total = 0;
        for (long k = 0; k < K; k++) total += column[k] * x[m * K + k];
        output[m * N + n] = total;
      }
    }
  });
}
