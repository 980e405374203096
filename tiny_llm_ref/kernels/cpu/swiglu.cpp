#include "kernel.h"
#include "simd.h"

/// silu(gate) * up, elementwise: gate / (1 + e^-gate) * up.
///
/// inputs:  gate and up float32, of one shape
/// outputs: float32, of that shape
KERNEL swiglu(const Array* inputs, const Array* outputs, const double* numbers) {
  const float* gate = inputs[0].data<float>();
  const float* up = inputs[1].data<float>();
  float* output = outputs[0].data<float>();

  parallel_for(inputs[0].size(), 16384, [&](long first, long last) {
    long i = first;
    for (; i + LANES <= last; i += LANES) {
      const Floats g = load(gate + i);
      store(output + i, g / (1.0f + exponential(-g)) * load(up + i));
    }
    for (; i < last; i++) output[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  });
}
