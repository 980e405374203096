#include "kernel.h"

/// Each pair of dimensions turned by the angle of its position.
///
/// inputs:  x float32 [B, L, H, D]; cos and sin float32 [number of positions, D / 2]
/// outputs: float32 [B, L, H, D]
/// numbers: 1 if pairs are neighbours, 0 if each half holds one member; then the first position of each row
KERNEL rope(const Array* inputs, const Array* outputs, const double* numbers) {
  const Array& x = inputs[0];
  const long B = x.length(0), L = x.length(1), H = x.length(2), D = x.length(3), half = D / 2;
  const bool are_neighbours = numbers[0];
  const long step = are_neighbours ? 2 : 1, distance = are_neighbours ? 1 : half;

  parallel_for(B * L, 16384 / (H * D) + 1, [&](long first, long last) {
    for (long i = first; i < last; i++) {
      const long position = static_cast<long>(numbers[1 + i / L]) + i % L;
      const float* cos = inputs[1].data<float>() + position * half;
      const float* sin = inputs[2].data<float>() + position * half;
      for (long h = 0; h < H; h++) {
        const float* source = x.data<float>() + (i * H + h) * D;
        float* target = outputs[0].data<float>() + (i * H + h) * D;
        for (long pair = 0; pair < half; pair++) {
          const float a = source[pair * step], b = source[pair * step + distance];
          target[pair * step] = a * cos[pair] - b * sin[pair];
          target[pair * step + distance] = b * cos[pair] + a * sin[pair];
        }
      }
    }
  });
}
