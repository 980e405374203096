#include "kernel.h"
#include "simd.h"

static inline Floats gated(Floats gate, Floats up) { return gate / (1.0f + exponential(-gate)) * up; }

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
    for (; i + LANES <= last; i += LANES) store(output + i, gated(load(gate + i), load(up + i)));
    if (i == last) return;
    const long rest = last - i;  // by the same operations, or an entry's bits would depend on its place
    store_first(output + i, gated(load_first(gate + i, rest), load_first(up + i, rest)), rest);
  });
}
