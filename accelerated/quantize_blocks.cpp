#include <algorithm>
#include <cmath>

#include "kernel.h"
#include "simd.h"

constexpr float SMALLEST_SCALE = 0x1p-14f;

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

/// The nearest float16, as bits; of two that are equally near, the even one.
static uint32_t narrow(float value) {
  const uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
  if (size > 0x7F800000) return sign | 0x7E00;   // nan
  if (size >= 0x477FF000) return sign | 0x7C00;  // infinity, or rounds to it
  if (size < 0x38800000) return sign | (to_bits(from_bits(size) + 0.5f) - to_bits(0.5f));  // in steps of 2^-24
  return sign | (size - (112 << 23) + 0xFFF + (size >> 13 & 1)) >> 13;
}

static float widen_float16(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, rest = (bits & 0x7FFFu) << 13;
  if (rest >= 0x0F800000) return from_bits(sign | rest | 0x7F800000);
  return from_bits(sign | rest) * 0x1p112f;
}

/// Entry i of an array of floats of the type of that number.
static float entry(const Array& x, int type, long i) {
  if (type == 0) return x.data<float>()[i];
  const uint16_t bits = x.data<uint16_t>()[i];
  return type == 1 ? from_bits(static_cast<uint32_t>(bits) << 16) : widen_float16(bits);
}

/// Quantize one group; its codes follow those of the groups before it.
static void quantize_group(const float* group, long group_size, int bits, uint32_t* words, uint32_t* grid) {
  const auto [lowest, highest] = std::minmax_element(group, group + group_size);
  const float levels = (1 << bits) - 1;
  const uint32_t scale_bits = narrow(std::max((*highest - *lowest) / levels, SMALLEST_SCALE)), bias_bits = narrow(*lowest);
  const float steps_per_unit = 1.0f / widen_float16(scale_bits), bias = widen_float16(bias_bits);
  *grid = scale_bits | bias_bits << 16;
  for (long i = 0; i < group_size; i++) {
    const uint32_t code = std::min(std::max(std::nearbyint((group[i] - bias) * steps_per_unit), 0.0f), levels);
    const long shift = i * bits % 32;
    words[i * bits / 32] = (shift ? words[i * bits / 32] : 0) | code << shift;
  }
}

/// Quantize whole blocks of floats, and put them in their places.
///
/// inputs:  blocks uint32 [num_blocks, block_size, H, words per head]; floats [num_tails, block_size, H, D];
///          tails int32 [F]; places int32 [F]
/// outputs: the blocks, with tail tails[i] quantized as block places[i]
/// numbers: bits (4 or 8); type of the floats: 0 for float32, 1 for bfloat16, 2 for float16
KERNEL quantize_blocks(const Array* inputs, const Array* outputs, const double* numbers) {
  const Array &floats = inputs[1], &blocks = outputs[0];
  const int32_t *tails = inputs[2].data<int32_t>(), *places = inputs[3].data<int32_t>();
  const int bits = numbers[0], type = numbers[1];
  const long D = floats.length(3), num_words = blocks.length(3), group_size = D % 64 ? 32 : 64;
  const long heads_per_block = blocks.length(1) * blocks.length(2);
  parallel_for(inputs[2].length(0) * heads_per_block, 16, [&](long first, long last) {
    float group[64];
    for (long i = first; i < last; i++) {
      const long block = i / heads_per_block, head = i % heads_per_block;
      const long source = (tails[block] * heads_per_block + head) * D;
      uint32_t* words = blocks.data<uint32_t>() + (places[block] * heads_per_block + head) * num_words;
      for (long d = 0; d < D; d += group_size) {
        for (long j = 0; j < group_size; j++) group[j] = entry(floats, type, source + d + j);
        quantize_group(group, group_size, bits, words + d * bits / 32, words + D * bits / 32 + d / group_size);
      }
    }
  });
}
