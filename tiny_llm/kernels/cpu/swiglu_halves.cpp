#include "kernel.h"
#include "simd.h"

/// silu(gate) * up, where both are halves of one product.
///
/// inputs:  product float32 [..., 2 I], the gate first
/// outputs: float32 [..., I]
KERNEL swiglu_halves(const Array* inputs, const Array* outputs, const double* numbers) {
  const long size = outputs[0].length(-1), num_rows = outputs[0].size() / size;

  parallel_for(num_rows, 16384 / size + 1, [&](long first, long last) {
    for (long row = first; row < last; row++) {
      const float *gate = inputs[0].data<float>() + row * 2 * size, *up = gate + size;
      float* output = outputs[0].data<float>() + row * size;
      long i = 0;
      for (; i + LANES <= size; i += LANES) {
        const Floats g = load(gate + i);
        store(output + i, g / (1.0f + exponential(-g)) * load(up + i));
      }
      for (; i < size; i++) output[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    }
  });
}
