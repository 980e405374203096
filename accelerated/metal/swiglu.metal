#include <metal_stdlib>
using namespace metal;

/// silu(gate) * up, an entry for each thread.
///
/// out: [rows, size]; entry i of row r is made of gate[r * distance + i] and up[r * distance + start + i]: of
/// two arrays, or of both halves of one. group.x counts groups of 256 entries.
template <typename T>
void swiglu(
    const device T* gate,
    const device T* up,
    device T* out,
    int size,
    int distance,
    int start,
    int count,
    uint3 group,
    uint simd_group,
    uint lane) {
  int i = int(group.x) * 256 + int(simd_group) * 32 + int(lane);
  if (i >= count) return;
  int place = i / size * distance + i % size;
  float x = float(gate[place]);
  out[i] = T(x / (1.0f + exp(-x)) * float(up[place + start]));
}
