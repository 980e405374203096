#include <cmath>

#include "kernel.h"

/// One head divided by its root mean square, times the weight.
static void normalize(const float* source, const float* weight, float eps, long D, float* target) {
  float sum_of_squares = 0;
  for (long d = 0; d < D; d++) sum_of_squares += source[d] * source[d];
  const float factor = 1 / std::sqrt(sum_of_squares / D + eps);
  for (long d = 0; d < D; d++) target[d] = source[d] * factor * weight[d];
}

/// One head turned by the angles of its position, in its place.
static void rotate(float* head, const float* cos, const float* sin, bool are_neighbours, long D) {
  const long half = D / 2, step = are_neighbours ? 2 : 1, distance = are_neighbours ? 1 : half;
  for (long pair = 0; pair < half; pair++) {
    const float a = head[pair * step], b = head[pair * step + distance];
    head[pair * step] = a * cos[pair] - b * sin[pair];
    head[pair * step + distance] = b * cos[pair] + a * sin[pair];
  }
}

/// Queries, keys and values out of one product: normalized where the model has norms, and rotated.
///
/// inputs:  product float32 [B, L, (H_q + 2 H) D]; cos and sin float32 [number of positions, D / 2]; with
///          norms the weights of queries and keys, float32 [D] each
/// outputs: float32 query [B, H_q, L, D], key and value [B, H, L, D]
/// numbers: 1 if there are norms; eps; 1 if pairs are neighbours; then the first position of each row
KERNEL split_heads(const Array* inputs, const Array* outputs, const double* numbers) {
  const long B = inputs[0].length(0), L = inputs[0].length(1), width = inputs[0].length(2);
  const long H_q = outputs[0].length(1), H = outputs[1].length(1), D = outputs[0].length(3);
  const bool has_norms = numbers[0], are_neighbours = numbers[2];
  const float eps = numbers[1];

  parallel_for(B * L, 16384 / width + 1, [&](long first, long last) {
    for (long i = first; i < last; i++) {
      const long b = i / L, l = i % L, position = static_cast<long>(numbers[3 + b]) + l;
      const float* source = inputs[0].data<float>() + i * width;
      for (long part = 0; part < 3; part++) {  // queries, keys, values
        const long num_heads = part == 0 ? H_q : H;
        for (long h = 0; h < num_heads; h++, source += D) {
          float* target = outputs[part].data<float>() + ((b * num_heads + h) * L + l) * D;
          if (part < 2 && has_norms) {
            normalize(source, inputs[3 + part].data<float>(), eps, D, target);
          } else {
            memcpy(target, source, D * sizeof(float));
          }
          if (part == 2) continue;
          rotate(target, inputs[1].data<float>() + position * D / 2, inputs[2].data<float>() + position * D / 2,
                 are_neighbours, D);
        }
      }
    }
  });
}
