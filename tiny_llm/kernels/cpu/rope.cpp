#include "kernel.h"

/// Each pair of dimensions turned by the angle of its position.
///
/// inputs:  x float32 [B, L, H, D]; cos and sin float32 [number of positions, D / 2]
/// outputs: float32 [B, L, H, D]
/// numbers: 1 if pairs are neighbours, 0 if each half holds one member; then the first position of each row
KERNEL rope(const Array* inputs, const Array* outputs, const double* numbers) {
  NOT_WRITTEN_YET("week 2 day 5 task 4: rope is not written yet");
}
