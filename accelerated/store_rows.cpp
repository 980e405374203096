#include "kernel.h"

/// Copy rows of an array over rows of another, in place.
///
/// inputs:  held [num_slots, ...]; new [T, ...] of the same type; slots int32 [T]
/// outputs: held, changed
/// numbers: bytes of a row
KERNEL store_rows(const Array* inputs, const Array* outputs, const double* numbers) {
  const Array &rows = inputs[1], &slots = inputs[2];
  const long num_bytes = static_cast<long>(numbers[0]);
  for (long i = 0; i < slots.size(); i++)
    std::memcpy(outputs[0].data<char>() + slots.data<int32_t>()[i] * num_bytes, rows.data<char>() + i * num_bytes,
                num_bytes);
}
