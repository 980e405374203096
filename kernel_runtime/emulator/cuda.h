// What a CUDA source takes for granted, when it is compiled for the emulator.
#pragma once

#include "emulator.h"
#include "vectors.h"

using __half = emulator::Half;
using __nv_bfloat16 = emulator::BFloat16;

#define __device__
#define __forceinline__ inline
#define __restrict__

// The thread's place: always that of the thread that runs.
static uint3 thread_in_block() { return {static_cast<unsigned>(emulator::thread_index()), 0, 0}; }
#define threadIdx thread_in_block()
#define blockIdx (emulator::group)
#define blockDim (uint3{static_cast<unsigned>(emulator::launch.num_threads), 1, 1})
#define gridDim (emulator::launch.num_groups)

static void __syncthreads(int line = __builtin_LINE()) { emulator::barrier("__syncthreads", line); }

static void check_mask(unsigned mask, const char* operation) {
  if (mask != 0xffffffff) EMULATOR_STOP("%s needs the mask of all lanes, 0xffffffff", operation);
}

static void __syncwarp(unsigned mask = 0xffffffff) {
  check_mask(mask, "__syncwarp");
  emulator::exchange(0, "__syncwarp");
}

template <typename V>
static V __shfl_sync(unsigned mask, V value, int lane) {
  check_mask(mask, "__shfl_sync");
  return emulator::value_of_lane(value, lane, "__shfl_sync");
}

template <typename V>
static V __shfl_xor_sync(unsigned mask, V value, int lane_mask) {
  check_mask(mask, "__shfl_xor_sync");
  return emulator::value_of_lane(value, emulator::lane() ^ lane_mask, "__shfl_xor_sync");
}

template <typename V>
static V __shfl_down_sync(unsigned mask, V value, int delta) {
  check_mask(mask, "__shfl_down_sync");
  return emulator::value_of_later_lane(value, delta, "__shfl_down_sync");
}

static emulator::Float __int_as_float(int bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static __half __ushort_as_half(unsigned short bits) {
  __half value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static emulator::Float fast_exp(float x) { return expf(x); }
#define __expf fast_exp

#define MADE_OF_TWO(name, E) \
  static name##2 make_##name##2(E x, E y) { return {x, y}; }
#define MADE_OF_FOUR(name, E) \
  static name##4 make_##name##4(E x, E y, E z, E w) { return {x, y, z, w}; }
MADE_OF_TWO(uint, unsigned)
MADE_OF_FOUR(uint, unsigned)
MADE_OF_TWO(float, emulator::Float)
MADE_OF_FOUR(float, emulator::Float)
