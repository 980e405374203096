#include <vector>

#include "kernel.h"
#include "simd.h"

constexpr int BLOCK = 2 * LANES;  // weights unpacked at a time: two vectors
constexpr int MAX_ROWS = 8;       // rows of x that share them
constexpr int PREFETCH = 4096;    // bytes ahead: what memory needs to answer in time
static_assert(32 % BLOCK == 0, "the smallest group is a whole number of blocks");

/// Two vectors of weights from the packed bytes of one block.
///
/// With 4 bits a byte holds two neighbours, so that the low halves are the weights 0, 2, 4, ... of the block
/// and the high halves 1, 3, 5, ...: x is put in the same order beforehand, and nothing need be shuffled here.
template <int BITS>
static void unpack_block(const uint8_t* packed, Floats& first, Floats& second) {
  if constexpr (BITS == 4) {
    Ints pairs = load_bytes(packed);
    first = to_floats(pairs & 15);
    second = to_floats(pairs >> 4);
  } else {
    first = to_floats(load_bytes(packed));
    second = to_floats(load_bytes(packed + LANES));
  }
}

/// The rows of x interleaved block by block, in the order in which `unpack_block` yields the weights.
template <int BITS>
static void arrange(const float* x, long num_rows, long K, float* arranged) {
  for (long block = 0; block < K / BLOCK; block++) {
    for (long row = 0; row < num_rows; row++) {
      const float* source = x + row * K + block * BLOCK;
      for (int i = 0; i < LANES; i++) {
        arranged[i] = source[BITS == 4 ? 2 * i : i];
        arranged[LANES + i] = source[BITS == 4 ? 2 * i + 1 : LANES + i];
      }
      arranged += BLOCK;
    }
  }
}

/// One column of the product for ROWS rows: each block of weights is unpacked once and used by all of them.
template <int BITS, int ROWS>
static void multiply_column(const float* x, const uint8_t* packed, const float* scales, const float* biases,
                            long K, long group_size, float* output, long output_stride) {
  Floats first_sums[ROWS] = {}, second_sums[ROWS] = {};
  for (long group = 0; group < K / group_size; group++) {
    const Floats scale = broadcast(scales[group]), bias = broadcast(biases[group]);
    for (long k = 0; k < group_size; k += BLOCK) {
      __builtin_prefetch(packed + PREFETCH);
      Floats first, second;
      unpack_block<BITS>(packed, first, second);
      first = first * scale + bias;
      second = second * scale + bias;
      for (int row = 0; row < ROWS; row++) {
        first_sums[row] += first * load(x + row * BLOCK);
        second_sums[row] += second * load(x + row * BLOCK + LANES);
      }
      packed += BLOCK * BITS / 8;
      x += ROWS * BLOCK;
    }
  }
  for (int row = 0; row < ROWS; row++) output[row * output_stride] = sum(first_sums[row] + second_sums[row]);
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
