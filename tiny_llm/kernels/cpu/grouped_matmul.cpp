#include <algorithm>

#include "quantized_matmul_simd.cpp"

constexpr long COLUMNS_PER_TASK = 48;

/// Columns first to last - 1 of the product of up to MAX_ROWS rows with one expert's weights.
///
/// Like multiply_rows: call the function with one row less while there are fewer than ROWS, then `arrange` the
/// rows and call `multiply_column` for each column. Compute nothing of the other columns.
///
/// x:                       [num_rows, K], the group's rows
/// packed, scales, biases:  [N, K * BITS / 8] bytes and [N, K / group_size], the expert's
/// output:                  [num_rows, N], the group's rows
template <int BITS, int ROWS>
static void multiply_columns(const float* x, long num_rows, const uint8_t* packed, const float* scales,
                             const float* biases, long K, long N, long group_size, long first, long last,
                             float* output) {
  NOT_WRITTEN_YET("week 4 day 2 task 5: multiply_columns is not written yet");
}

/// Neighbouring rows, first_row to last_row - 1, of one expert.
struct Group {
  long expert, first_row, last_row;
};

/// All rows in groups of up to MAX_ROWS; a new group begins where the expert changes or a group is full.
///
/// experts: [num_rows], each row's expert, in ascending order
static std::vector<Group> groups_of(const int32_t* experts, long num_rows) {
  NOT_WRITTEN_YET("week 4 day 2 task 5: groups_of is not written yet");
}

/// The product of each row with the packed weights of its expert.
///
/// inputs:  x float32 [R, K]; experts int32 [R], ascending; weight uint32 [X * N, K * bits / 32]; scales and
///          biases float32 [X * N, K / group_size], where group_size is a multiple of 32
/// outputs: float32 [R, N]
/// numbers: bits (4 or 8), group_size
KERNEL grouped_matmul(const Array* inputs, const Array* outputs, const double* numbers) {
  const float* x = inputs[0].data<float>();
  const uint8_t* packed = inputs[2].data<uint8_t>();
  const float *scales = inputs[3].data<float>(), *biases = inputs[4].data<float>();
  const long R = inputs[0].length(0), K = inputs[0].length(1), N = outputs[0].length(1);
  const long bits = numbers[0], group_size = numbers[1], num_groups = K / group_size;
  float* output = outputs[0].data<float>();
  const std::vector<Group> groups = groups_of(inputs[1].data<int32_t>(), R);
  const long num_parts = (N + COLUMNS_PER_TASK - 1) / COLUMNS_PER_TASK;
  parallel_for(groups.size() * num_parts, 1, [&](long task, long) {
    const Group& group = groups[task / num_parts];
    const long first = task % num_parts * COLUMNS_PER_TASK, start = group.expert * N;
    auto multiply = bits == 4 ? multiply_columns<4, MAX_ROWS> : multiply_columns<8, MAX_ROWS>;
    multiply(x + group.first_row * K, group.last_row - group.first_row, packed + start * K * bits / 8,
             scales + start * num_groups, biases + start * num_groups, K, N, group_size, first,
             std::min(N, first + COLUMNS_PER_TASK), output + group.first_row * N);
  });
}
