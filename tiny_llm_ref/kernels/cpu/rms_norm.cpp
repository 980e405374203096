#include <cmath>

#include "kernel.h"

/// Each vector divided by its root mean square, times the weight, in one pass over memory.
///
/// inputs:  x float32 [..., E]; weight float32 [E]
/// outputs: float32 [..., E]
/// numbers: eps
KERNEL rms_norm(const Array* inputs, const Array* outputs, const double* numbers) {
  const float* weight = inputs[1].data<float>();
  const long E = inputs[1].length(0), num_vectors = inputs[0].size() / E;
  const float eps = numbers[0];

  parallel_for(num_vectors, 16384 / E + 1, [&](long first, long last) {
    for (long i = first; i < last; i++) {
      const float* x = inputs[0].data<float>() + i * E;
      float* output = outputs[0].data<float>() + i * E;
      float sum_of_squares = 0;
      for (long e = 0; e < E; e++) sum_of_squares += x[e] * x[e];
      const float factor = 1 / std::sqrt(sum_of_squares / E + eps);
      for (long e = 0; e < E; e++) output[e] = x[e] * factor * weight[e];
    }
  });
}
