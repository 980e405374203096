// Square matrices that the lanes of a SIMD group hold together, and that a GPU's matrix units multiply.
#pragma once

#include "emulator.h"

namespace emulator {

struct Place {
  int row, column;
};

// All lanes call a matrix operation with the same arguments. It orders nothing else that they do to memory.
template <typename T>
static void need_alike(const T* start, uint64_t stride, bool by_columns, const char* operation) {
  const uint64_t arguments = reinterpret_cast<uint64_t>(start) + (stride << 48) + (uint64_t{by_columns} << 47);
  const uint64_t* slots = exchange(arguments, operation, false);
  if (value_in<uint64_t>(&slots[0]) != arguments)
    EMULATOR_STOP("thread %d calls %s with other arguments than lane 0", thread_index(), operation);
}

// An access to two entries of a matrix at once if they are neighbours, and two if they are not.
template <typename T>
NOT_WATCHED static void access_pair(const T* first, int64_t step, bool is_write) {
  static const char instructions[4] = {};  // whose addresses stand for those of the accesses
  const uint64_t bytes = step == 1 ? 2 * sizeof(T) : sizeof(T);
  for (int i = 0; i < (step == 1 ? 1 : 2); i++) {
    watch(first + i * step, bytes, is_write);
    note(first + i * step, bytes, is_write, &instructions[2 * is_write + i]);
  }
}

template <typename T>
NOT_WATCHED static void load_pair(T* entries, const T* first, int64_t step) {
  access_pair(first, step, false);
  memcpy(&entries[0], first, sizeof(T));
  memcpy(&entries[1], first + step, sizeof(T));
}

template <typename T>
NOT_WATCHED static void store_pair(const T* entries, T* first, int64_t step) {
  access_pair(first, step, true);
  memcpy(first, &entries[0], sizeof(T));
  memcpy(first + step, &entries[1], sizeof(T));
}

// The entries of three matrices in one lane.
template <int entries>
struct Operands {
  float left[entries], right[entries], sum[entries];
};

static float products[MAX_THREADS / LANES][16 * 16];

// sum + left x right. The first lane that goes on computes it for all; the place functions say where the entry
// of a lane lies in the matrix.
template <int size>
NOT_WATCHED static const float* multiply(
    const Operands<size * size / LANES>& own, const char* operation, Place (*left_place)(int lane, int i),
    Place (*right_place)(int lane, int i), Place (*sum_place)(int lane, int i)) {
  using Own = Operands<size * size / LANES>;
  const uint64_t* slots = exchange(&own, operation, false);
  float* result = products[thread_index() / LANES];
  Combined& done = combined[current->num_exchanges % 2][thread_index() / LANES];
  if (done.num_exchanges == current->num_exchanges) return result;
  done.num_exchanges = current->num_exchanges;
  count_matrix_products(size * size * size);
  float left[size][size], right[size][size];
  for (int lane = 0; lane < LANES; lane++)
    for (int i = 0; i < size * size / LANES; i++) {
      const Own* operands = value_in<const Own*>(&slots[lane]);
      const Place in_left = left_place(lane, i), in_right = right_place(lane, i), in_sum = sum_place(lane, i);
      left[in_left.row][in_left.column] = operands->left[i];
      right[in_right.row][in_right.column] = operands->right[i];
      result[in_sum.row * size + in_sum.column] = operands->sum[i];
    }
  for (int row = 0; row < size; row++)
    for (int k = 0; k < size; k++)
      for (int column = 0; column < size; column++)
        result[row * size + column] += left[row][k] * right[k][column];
  return result;
}

}  // namespace emulator
