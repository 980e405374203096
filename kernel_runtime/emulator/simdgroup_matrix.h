// Metal's simdgroup_matrix: 8 x 8 entries, of which each lane holds two neighbours.
#pragma once

#include "matrices.h"

namespace metal {

template <typename T, int Columns, int Rows>
struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "a simdgroup_matrix has 8 rows and 8 columns");
  simdgroup_matrix() : elements(T(NAN)) {}
  explicit simdgroup_matrix(T diagonal) {
    for (int i = 0; i < 2; i++) {
      const emulator::Place place = place_of(emulator::lane(), i);
      elements[i] = place.row == place.column ? diagonal : T(0.0f);
    }
  }
  vec<T, 2>& thread_elements() { return elements; }
  const vec<T, 2>& thread_elements() const { return elements; }

  // As on the GPUs of today; Apple does not promise it.
  static emulator::Place place_of(int lane, int i) {
    return {(lane / 4 & 4) + lane / 2 % 4, (lane / 4 & 2) * 2 + lane % 2 * 2 + i};
  }

  vec<T, 2> elements;
};

template <typename T, int Columns, int Rows>
static simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> matrix;
  matrix.elements = vec<T, 2>(value);
  return matrix;
}

struct ulong2 {
  ulong2(unsigned long value = 0) : x(value), y(value) {}
  ulong2(unsigned long x, unsigned long y) : x(x), y(y) {}
  unsigned long x, y;  // column and row
};

// Where the lane's first element lies, and how far from it the second.
template <typename T>
static T* first_element(T* origin, unsigned long stride, ulong2 corner, bool transposed, const char* operation) {
  T* start = origin + corner.y * stride + corner.x;
  emulator::need_alike(start, stride, transposed, operation);
  const emulator::Place place = simdgroup_matrix<emulator::Half, 8, 8>::place_of(emulator::lane(), 0);
  return start + (transposed ? place.column * stride + place.row : place.row * stride + place.column);
}

template <typename T>
static void simdgroup_load(
    simdgroup_matrix<T, 8, 8>& matrix, const T* source, unsigned long stride = 8, ulong2 corner = 0,
    bool transposed = false) {
  const T* first = first_element(source, stride, corner, transposed, "simdgroup_load");
  emulator::load_pair(matrix.elements.entries, first, transposed ? stride : 1);
}

template <typename T>
static void simdgroup_store(
    const simdgroup_matrix<T, 8, 8>& matrix, T* target, unsigned long stride = 8, ulong2 corner = 0,
    bool transposed = false) {
  T* first = first_element(target, stride, corner, transposed, "simdgroup_store");
  emulator::store_pair(matrix.elements.entries, first, transposed ? stride : 1);
}

template <typename D, typename A, typename B, typename C>
static void simdgroup_multiply_accumulate(
    simdgroup_matrix<D, 8, 8>& result, const simdgroup_matrix<A, 8, 8>& left,
    const simdgroup_matrix<B, 8, 8>& right, const simdgroup_matrix<C, 8, 8>& sum) {
  emulator::Operands<2> own;
  for (int i = 0; i < 2; i++) {
    own.left[i] = static_cast<float>(left.elements[i]);
    own.right[i] = static_cast<float>(right.elements[i]);
    own.sum[i] = static_cast<float>(sum.elements[i]);
  }
  constexpr auto place_of = simdgroup_matrix<D, 8, 8>::place_of;
  const float* all =
      emulator::multiply<8>(own, "simdgroup_multiply_accumulate", place_of, place_of, place_of);
  for (int i = 0; i < 2; i++) {
    const emulator::Place place = place_of(emulator::lane(), i);
    result.elements[i] = D(all[place.row * 8 + place.column]);
  }
}

template <typename D, typename A, typename B>
static void simdgroup_multiply(
    simdgroup_matrix<D, 8, 8>& result, const simdgroup_matrix<A, 8, 8>& left,
    const simdgroup_matrix<B, 8, 8>& right) {
  simdgroup_multiply_accumulate(result, left, right, make_filled_simdgroup_matrix<D, 8, 8>(D(0.0f)));
}

using simdgroup_float8x8 = simdgroup_matrix<emulator::Float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<emulator::Half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<emulator::BFloat16, 8, 8>;

}  // namespace metal
