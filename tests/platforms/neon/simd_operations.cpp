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

// The input holds 4 vectors for each of the output.
KERNEL simd_add_up_quarters(const Array* inputs, const Array* outputs, const double*) {
  for (long i = 0; i < outputs[0].size(); i += LANES) {
    Ints vectors[4];
    for (int j = 0; j < 4; j++) vectors[j] = load_ints(inputs[0].data<int32_t>() + 4 * i + j * LANES);
    store(outputs[0].data<int32_t>() + i, add_up_quarters(vectors));
  }
}

KERNEL simd_load_bytes(const Array* inputs, const Array* outputs, const double*) {
  for (long i = 0; i < outputs[0].size(); i += LANES)
    store(outputs[0].data<int32_t>() + i, load_bytes(inputs[0].data<uint8_t>() + i));
}

// The input is [LANES, stride]; the output holds word i of each column in row i.
KERNEL simd_load_columns(const Array* inputs, const Array* outputs, const double*) {
  Ints words[4];
  load_columns(inputs[0].data<uint32_t>(), inputs[0].length(1), words);
  for (int i = 0; i < 4; i++) store(outputs[0].data<int32_t>() + i * LANES, words[i]);
}
