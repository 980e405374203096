// Vectors as wide as this processor's registers, written once for AVX-512, AVX2, SSE and NEON.
//
// GCC and Clang let +, -, * and the conversions below work on whole vectors; the width is all that differs.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512BW__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));

inline Floats load(const float* source) {
  Floats result;
  memcpy(&result, source, sizeof(result));
  return result;
}

inline Ints load_ints(const void* source) {
  Ints result;
  memcpy(&result, source, sizeof(result));
  return result;
}

inline void store(void* target, Ints values) { memcpy(target, &values, sizeof(values)); }

inline void store(float* target, Floats values) { memcpy(target, &values, sizeof(values)); }

inline Floats broadcast(float value) { return value - Floats{}; }

inline Ints broadcast(int32_t value) { return value - Ints{}; }

// The next LANES bytes, each as an integer. Compilers are slow at this one without the processor's own name
// for it.
inline Ints load_bytes(const uint8_t* source) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)source));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)source));
#else
  Bytes bytes;
  memcpy(&bytes, source, sizeof(bytes));
  return __builtin_convertvector(bytes, Ints);
#endif
}

// 0, 1, 2 and so on.
inline Ints count_lanes() {
  Ints result;
  for (int lane = 0; lane < LANES; lane++) result[lane] = lane;
  return result;
}

// The first `count` words, up to LANES of them; 0 in the other lanes, whose memory is not read.
inline Ints load_first(const uint32_t* source, long count) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_maskz_loadu_epi32(static_cast<__mmask16>((1 << count) - 1), source);
#elif defined(__AVX2__)
  return (Ints)_mm256_maskload_epi32((const int*)source, (__m256i)(count_lanes() < static_cast<int32_t>(count)));
#else
  Ints result = {};
  for (long lane = 0; lane < count; lane++) result[lane] = static_cast<int32_t>(source[lane]);
  return result;
#endif
}

inline Floats load_first(const float* source, long count) {
  return (Floats)load_first(reinterpret_cast<const uint32_t*>(source), count);
}

// The first `count` lanes, up to all of them, to where only they are.
inline void store_first(float* target, Floats values, long count) { memcpy(target, &values, count * sizeof(float)); }

// sums[i] + a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1], where a and b are seen as 16-bit integers, two in each of
// the others. Processors have one instruction for it, which compilers do not find by themselves.
inline Ints add_dot_pairs(Ints sums, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
  return sums + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return sums + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return sums + (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  return sums + (a >> 16) * (b >> 16) + ((a << 16) >> 16) * ((b << 16) >> 16);
#endif
}

inline Floats to_floats(Ints values) { return __builtin_convertvector(values, Floats); }

inline Ints to_ints(Floats values) { return __builtin_convertvector(values, Ints); }

// The low half of each word as a float16.
inline Floats halves_to_floats(Ints words) {
#if defined(__AVX512BW__)
  return (Floats)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)words));
#else
  const Ints sizes = words & 0x7FFF, exact = (sizes << 13) + (112 << 23), not_finite = sizes << 13 | 0x7F800000;
  const Floats small = to_floats(sizes) * 5.9604645e-8f;  // 2^-24
  const Ints values = sizes < 0x400 ? (Ints)small : sizes < 0x7C00 ? exact : not_finite;
  return (Floats)(values | (words & 0x8000) << 16);
#endif
}

// The sum of the lanes, always in one order: every fourth, then the first two and the last two of these.
inline float sum(Floats values) {
  typedef float Quarter __attribute__((vector_size(16)));
  Quarter quarters[LANES / 4];
  memcpy(quarters, &values, sizeof(values));
  for (int i = 1; i < LANES / 4; i++) quarters[0] += quarters[i];
  return (quarters[0][0] + quarters[0][1]) + (quarters[0][2] + quarters[0][3]);
}

// e to the power of each value, within 2e-7 of it relative to its size, 0 below -87 and no more than e^88:
// 2^n times a polynomial in what is left. Source of the coefficients: the Cephes library, expf.
inline Floats exponential(Floats x) {
  const Floats low = broadcast(-87.0f), high = broadcast(88.0f);
  const Floats bounded = x < low ? low : x > high ? high : x;
  const Ints n = to_ints(bounded * 1.44269504f + (bounded < 0.0f ? broadcast(-0.5f) : broadcast(0.5f)));
  const Floats r = bounded - to_floats(n) * 0.693359375f + to_floats(n) * 2.12194440e-4f;
  Floats p = broadcast(1.9875691500e-4f);
  for (float coefficient :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = p * r + coefficient;
  p = p * r * r + r + 1.0f;
  return x < low ? Floats{} : (Floats)((Ints)p + (n << 23));
}
