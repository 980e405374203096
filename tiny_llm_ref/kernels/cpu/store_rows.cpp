#include <algorithm>

#include "kernel.h"

/// Rows of an array that takes the place of another, with some of them replaced.
///
/// inputs:  the array that is replaced, float32 [num_slots, ...]; rows float32 [T, ...]; slots int32 [T].
/// outputs: the first input's memory, or a copy of it.
KERNEL store_rows(const Array* inputs, const Array* outputs, const double*) {
  const long T = inputs[2].size(), width = inputs[1].size() / T;
  const float* rows = inputs[1].data<float>();
  const int32_t* slots = inputs[2].data<int32_t>();
  float* target = outputs[0].data<float>();
  for (long i = 0; i < T; i++) std::copy_n(rows + i * width, width, target + slots[i] * width);
}
