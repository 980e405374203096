#include <vector>

#include "kernel.h"
#include "simd.h"

constexpr int BLOCK = 2 * LANES;  // weights unpacked at a time: two vectors
constexpr int MAX_ROWS = 8;       // rows of x that share them
static_assert(32 % BLOCK == 0, "the smallest group is a whole number of blocks");

/// Two vectors of weights from the packed bytes of one block.
///
/// With 4 bits a byte holds two neighbours, so that the low halves are the weights 0, 2, 4, ... of the block
/// and the high halves 1, 3, 5, ...: x is put in the same order beforehand, and nothing need be shuffled here.
template <int BITS>
static void unpack_block(const uint8_t* packed, Floats& first, Floats& second) {
  NOT_WRITTEN_YET("week 2 day 3 task 2: unpack_block is not written yet");
}

/// The rows of x interleaved block by block, in the order in which `unpack_block` yields the weights.
template <int BITS>
static void arrange(const float* x, long num_rows, long K, float* arranged) {
  NOT_WRITTEN_YET("week 2 day 3 task 2: arrange is not written yet");
}

/// One column of the product for ROWS rows: each block of weights is unpacked once and used by all of them.
template <int BITS, int ROWS>
static void multiply_column(const float* x, const uint8_t* packed, const float* scales, const float* biases,
                            long K, long group_size, float* output, long output_stride) {
  NOT_WRITTEN_YET("week 2 day 3 task 2: multiply_column is not written yet");
}

/// All columns for up to MAX_ROWS rows of x.
template <int BITS, int ROWS>
static void multiply_rows(const Array* inputs, const float* x, long num_rows, long group_size, float* output) {
  if constexpr (ROWS > 1) {
    if (num_rows < ROWS) return multiply_rows<BITS, ROWS - 1>(inputs, x, num_rows, group_size, output);
  }
  const uint8_t* packed = inputs[1].data<uint8_t>();
  const float* scales = inputs[2].data<float>();
  const float* biases = inputs[3].data<float>();
  const long K = inputs[0].length(-1), N = inputs[1].length(0);
  const long num_bytes = K * BITS / 8, num_groups = K / group_size;
  std::vector<float> arranged(ROWS * K);
  arrange<BITS>(x, ROWS, K, arranged.data());
  parallel_for(N, 48, [&](long first, long last) {
    for (long n = first; n < last; n++) {
      multiply_column<BITS, ROWS>(arranged.data(), packed + n * num_bytes, scales + n * num_groups,
                                  biases + n * num_groups, K, group_size, output + n, N);
    }
  });
}

/// The product of activations with packed weights, in vectors as wide as the processor has them.
///
/// inputs, outputs and numbers: as for quantized_matmul_simple; group_size is a multiple of 32.
KERNEL quantized_matmul_simd(const Array* inputs, const Array* outputs, const double* numbers) {
  const float* x = inputs[0].data<float>();
  float* output = outputs[0].data<float>();
  const long M = inputs[0].size() / inputs[0].length(-1), K = inputs[0].length(-1), N = inputs[1].length(0);
  const long bits = numbers[0], group_size = numbers[1];
  for (long row = 0; row < M; row += MAX_ROWS) {
    auto multiply = bits == 4 ? multiply_rows<4, MAX_ROWS> : multiply_rows<8, MAX_ROWS>;
    multiply(inputs, x + row * K, M - row, group_size, output + row * N);
  }
}
