// CUDA's <mma.h>: warp matrices of 16 x 16 entries, of which each lane holds eight.
#pragma once

#include "matrices.h"

namespace nvcuda {
namespace wmma {

template <typename One, typename Other>
constexpr bool is_same = false;
template <typename One>
constexpr bool is_same<One, One> = true;

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
  static_assert(M == 16 && N == 16 && K == 16, "the emulator has fragments of 16 x 16 x 16");
  static constexpr int num_elements = 8;
  using element_type = T;
  fragment() {
    for (T& entry : x) entry = T(NAN);
  }
  T x[num_elements];
};

// Entries in pairs along rows, or along columns: as in the registers of the mma instructions. CUDA promises none
// of it but that fragments of one type are alike.
static emulator::Place place_by_rows(int lane, int i) {
  return {lane / 4 + i / 2 % 2 * 8, lane % 4 * 2 + i % 2 + i / 4 * 8};
}
static emulator::Place place_by_columns(int lane, int i) {
  const emulator::Place place = place_by_rows(lane, i);
  return {place.column, place.row};
}
template <typename Use>
static constexpr auto place_of = place_by_rows;
template <>
constexpr auto place_of<matrix_b> = place_by_columns;

// Calls visit(i, entry) for the first of each pair of a lane, with the distance of the other one.
template <typename Use, typename T, typename Visit>
static void for_pairs(T* start, unsigned stride, bool by_columns, const char* operation, Visit visit) {
  emulator::need_alike(start, stride, by_columns, operation);
  if (reinterpret_cast<uint64_t>(start) % 32 != 0 || stride * sizeof(T) % 16 != 0)
    EMULATOR_STOP("thread %d: %s needs an address that is a multiple of 32 bytes and rows that are one of 16",
                  emulator::thread_index(), operation);
  const auto at = [&](int i) {
    const emulator::Place place = place_of<Use>(emulator::lane(), i);
    return by_columns ? int64_t{place.column} * stride + place.row : int64_t{place.row} * stride + place.column;
  };
  for (int i = 0; i < 8; i += 2) visit(i, start + at(i), at(i + 1) - at(i));
}

template <typename Use, typename T, typename Layout>
static void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& to, const T* from, unsigned stride) {
  constexpr bool by_columns = is_same<Layout, col_major>;
  for_pairs<Use>(from, stride, by_columns, "load_matrix_sync", [&](int i, const T* first, int64_t step) {
    emulator::load_pair(&to.x[i], first, step);
  });
}

template <typename T>
static void load_matrix_sync(
    fragment<accumulator, 16, 16, 16, T>& to, const T* from, unsigned stride, layout_t layout) {
  const bool by_columns = layout == mem_col_major;
  for_pairs<accumulator>(from, stride, by_columns, "load_matrix_sync", [&](int i, const T* first, int64_t step) {
    emulator::load_pair(&to.x[i], first, step);
  });
}

template <typename T>
static void store_matrix_sync(
    T* to, const fragment<accumulator, 16, 16, 16, T>& from, unsigned stride, layout_t layout) {
  const bool by_columns = layout == mem_col_major;
  for_pairs<accumulator>(to, stride, by_columns, "store_matrix_sync", [&](int i, T* first, int64_t step) {
    emulator::store_pair(&from.x[i], first, step);
  });
}

template <typename Use, typename T, typename Layout, typename V>
static void fill_fragment(fragment<Use, 16, 16, 16, T, Layout>& to, V value) {
  for (T& entry : to.x) entry = T(value);
}

template <typename T, typename LeftLayout, typename RightLayout>
static void mma_sync(
    fragment<accumulator, 16, 16, 16, emulator::Float>& result, const fragment<matrix_a, 16, 16, 16, T, LeftLayout>& left,
    const fragment<matrix_b, 16, 16, 16, T, RightLayout>& right,
    const fragment<accumulator, 16, 16, 16, emulator::Float>& sum) {
  static_assert(sizeof(T) == 2, "matrix units multiply __half or __nv_bfloat16 here");
  emulator::Operands<8> own;
  for (int i = 0; i < 8; i++) {
    own.left[i] = static_cast<float>(left.x[i]);
    own.right[i] = static_cast<float>(right.x[i]);
    own.sum[i] = static_cast<float>(sum.x[i]);
  }
  const float* all =
      emulator::multiply<16>(own, "mma_sync", place_by_rows, place_by_columns, place_by_rows);
  for (int i = 0; i < 8; i++) {
    const emulator::Place place = place_by_rows(emulator::lane(), i);
    result.x[i] = all[place.row * 16 + place.column];
  }
}

}  // namespace wmma
}  // namespace nvcuda
