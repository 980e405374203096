#include "kernel.h"

/// Set the logits of forbidden tokens to -inf, in some rows, in place.
///
/// inputs:  logits float32 [B, V]; rows int32 [R]; bits uint32 [R, W], the lowest of a word first
/// outputs: logits, changed
///
/// Bit t of row rows[i] is 1 if token t may come. The threads share the words of a mask. Most words are alike:
/// where all bits are 1, there is nothing to write.
KERNEL mask_rows(const Array* inputs, const Array* outputs, const double* numbers) {
  NOT_WRITTEN_YET("week 3 day 8 task 5: mask_rows is not written yet");
}
