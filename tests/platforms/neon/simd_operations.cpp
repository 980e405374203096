// Each operation of simd.h as a kernel of its own: one call for every LANES entries.
#include <algorithm>

#include "kernel.h"
#include "simd.h"

KERNEL simd_sum(const Array* inputs, const Array* outputs, const double*) {
  for (long i = 0; i < outputs[0].size(); i++)
    outputs[0].data<float>()[i] = sum(load(inputs[0].data<float>() + i * LANES));
}

KERNEL simd_exponential(const Array* inputs, const Array* outputs, const double*) {
  for (long i = 0; i < inputs[0].size(); i += LANES)
    store(outputs[0].data<float>() + i, exponential(load(inputs[0].data<float>() + i)));
}

KERNEL simd_add_dot_pairs(const Array* inputs, const Array* outputs, const double*) {
  for (long i = 0; i < inputs[0].size(); i += LANES) {
    auto ints = [&](int number) { return load_ints(inputs[number].data<int32_t>() + i); };
    store(outputs[0].data<int32_t>() + i, add_dot_pairs(ints(0), ints(1), ints(2)));
  }
}

// Row `count` of the output: the first `count` words, for 0 to LANES of them.
KERNEL simd_load_first(const Array* inputs, const Array* outputs, const double*) {
  for (long count = 0; count <= LANES; count++)
    store(outputs[0].data<int32_t>() + count * LANES, load_first(inputs[0].data<uint32_t>(), count));
}

// The same of floats, of which as many are stored.
KERNEL simd_store_first(const Array* inputs, const Array* outputs, const double*) {
  float* target = outputs[0].data<float>();
  std::fill(target, target + (LANES + 1) * LANES, 1.0f);
  for (long count = 0; count <= LANES; count++)
    store_first(target + count * LANES, load_first(inputs[0].data<float>(), count), count);
}

KERNEL simd_load_bytes(const Array* inputs, const Array* outputs, const double*) {
  for (long i = 0; i < outputs[0].size(); i += LANES)
    store(outputs[0].data<int32_t>() + i, load_bytes(inputs[0].data<uint8_t>() + i));
}

KERNEL simd_halves_to_floats(const Array* inputs, const Array* outputs, const double*) {
  for (long i = 0; i < outputs[0].size(); i += LANES)
    store(outputs[0].data<float>() + i, halves_to_floats(load_ints(inputs[0].data<int32_t>() + i)));
}
