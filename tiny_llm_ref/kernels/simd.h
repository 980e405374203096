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

#if defined(__AVX512F__)
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

inline void store(float* target, Floats values) { memcpy(target, &values, sizeof(values)); }

inline Floats broadcast(float value) { return value - Floats{}; }

// The next LANES bytes, each as an integer. Compilers are slow at this one without the processor's own name
// for it.
inline Ints load_bytes(const uint8_t* source) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)source));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)source));
#else
  Bytes bytes;
  memcpy(&bytes, source, sizeof(bytes));
  return __builtin_convertvector(bytes, Ints);
#endif
}

inline Floats to_floats(Ints values) { return __builtin_convertvector(values, Floats); }

inline Ints to_ints(Floats values) { return __builtin_convertvector(values, Ints); }

inline float sum(Floats values) {
  typedef float Quarter __attribute__((vector_size(16)));
  Quarter quarters[LANES / 4], total = {};
  memcpy(quarters, &values, sizeof(values));
  for (Quarter quarter : quarters) total += quarter;
  return (total[0] + total[1]) + (total[2] + total[3]);
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
