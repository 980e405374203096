#include "kernel.h"

/// Set the logits of forbidden tokens to -inf, in some rows, in place.
///
/// inputs:  logits float32 [B, V]; rows int32 [R]; bits uint32 [R, W], the lowest of a word first
/// outputs: logits, changed
///
/// Bit t of row rows[i] is 1 if token t may come. The threads share the words of a mask. Most words are alike:
/// where all bits are 1, there is nothing to write.
KERNEL mask_rows(const Array* inputs, const Array* outputs, const double* numbers) {
  const long V = inputs[0].length(-1), R = inputs[2].length(0), W = inputs[2].length(1);
  const int32_t* rows = inputs[1].data<int32_t>();
  const uint32_t* bits = inputs[2].data<uint32_t>();
  float* logits = outputs[0].data<float>();

  parallel_for(R * W, 1024, [&](long first, long last) {
    for (long i = first; i < last; i++) {
      const uint32_t word = bits[i];
      if (word == 0xFFFFFFFFu) continue;
      float* row = logits + rows[i / W] * V;
      const long start = i % W * 32, end = start + 32 < V ? start + 32 : V;
      for (long token = start; token < end; token++)
        if (!(word >> (token - start) & 1)) row[token] = -INFINITY;
    }
  });
}
