#include <cmath>

#include "kernel.h"

/// Each vector divided by its root mean square, times the weight, in one pass over memory.
///
/// inputs:  x float32 [..., E]; weight float32 [E]
/// outputs: float32 [..., E]
/// numbers: eps
KERNEL rms_norm(const Array* inputs, const Array* outputs, const double* numbers) {
  NOT_WRITTEN_YET("week 2 day 5 task 4: rms_norm is not written yet");
}
