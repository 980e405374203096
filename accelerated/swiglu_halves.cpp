#include "kernel.h"
#include "simd.h"

static inline Floats gated(Floats gate, Floats up) { return gate / (1.0f + exponential(-gate)) * up; }

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
      for (; i + LANES <= size; i += LANES) store(output + i, gated(load(gate + i), load(up + i)));
      const long rest = size - i;
      if (rest > 0) store_first(output + i, gated(load_first(gate + i, rest), load_first(up + i, rest)), rest);
    }
  });
}
