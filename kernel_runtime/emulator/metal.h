// What a Metal source finds in the place of <metal_stdlib>, when it is compiled for the emulator.
#pragma once

#include "emulator.h"
#include "vectors.h"

namespace metal {
enum class mem_flags { mem_none, mem_device, mem_threadgroup };
namespace fast {
static emulator::Float exp(float x) { return expf(x); }
}  // namespace fast
namespace precise {
static emulator::Float exp(float x) { return expf(x); }
}  // namespace precise
template <typename E, int N>
using vec = emulator::Wide<E, N>;
}  // namespace metal

using half = emulator::Half;
using bfloat16_t = emulator::BFloat16;
using uint = unsigned;
using half2 = metal::vec<half, 2>;
using half4 = metal::vec<half, 4>;

template <typename To, typename From>
static To as_type(From value) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs types of the same size");
  To result;
  memcpy(&result, &value, sizeof result);
  return result;
}

// Address spaces: here all memory is one.
#define device
#define threadgroup
#define thread
#define constant

static void threadgroup_barrier(metal::mem_flags flags, int line = __builtin_LINE()) {
  if (flags != metal::mem_flags::mem_threadgroup)
    EMULATOR_STOP("threadgroup_barrier needs mem_flags::mem_threadgroup: another flag leaves tiles unfinished");
  emulator::barrier("threadgroup_barrier", line);
}

static void simdgroup_barrier(metal::mem_flags) { emulator::exchange(0, "simdgroup_barrier"); }

static emulator::Float simd_sum(float value) {
  return emulator::combine(value, "simd_sum", [](float sum, float other) { return sum + other; });
}

static emulator::Float simd_max(float value) {
  return emulator::combine(value, "simd_max", [](float maximum, float other) { return fmaxf(maximum, other); });
}

static emulator::Float simd_min(float value) { return -simd_max(-value); }

template <typename V>
static V simd_broadcast(V value, int lane) {
  return emulator::value_of_lane(value, lane, "simd_broadcast");
}

template <typename V>
static V simd_shuffle(V value, int lane) {
  return emulator::value_of_lane(value, lane, "simd_shuffle");
}

template <typename V>
static V simd_shuffle_xor(V value, int mask) {
  return emulator::value_of_lane(value, emulator::lane() ^ mask, "simd_shuffle_xor");
}

template <typename V>
static V simd_shuffle_down(V value, int delta) {
  return emulator::value_of_later_lane(value, delta, "simd_shuffle_down");
}

// The thread's place, which the generated call passes to the kernel function.
#define threadgroup_position_in_grid emulator::group
#define simdgroup_index_in_threadgroup (emulator::thread_index() / emulator::LANES)
#define thread_index_in_simdgroup emulator::lane()

#include "simdgroup_matrix.h"
