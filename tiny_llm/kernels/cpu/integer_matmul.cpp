// The product with packed weights in whole numbers: activations are rounded to 16 bits, of which a processor
// multiplies twice as many at a time as of floats, and weights need no scale until a group is done. Few rows meet
// each column where it lies; for many rows columns are put side by side, so that each is unpacked once.
#include <vector>

#include "kernel.h"
#include "simd.h"

constexpr int MANY_ROWS = 17;                // from here on columns are put side by side
constexpr int COLUMN_ROWS = 8;               // rows that a column meets at a time where it lies
constexpr int PAIR_ROWS = 2;                 // up to these columns come in pairs: sums that do not wait for each other
constexpr int TILE_ROWS = 6;                 // rows and vectors of columns whose sums stay in registers
constexpr int TILE_VECTORS = 2;
constexpr int PANEL = TILE_VECTORS * LANES;  // columns that are put side by side
constexpr int PAIRS = 2 * LANES;             // 16-bit integers in a vector
constexpr long TASK_SIZE = 1 << 18;          // products that are worth another thread's waking up
constexpr int PREFETCH = 4096;               // bytes ahead: what memory needs to answer in time
static_assert(32 % PAIRS == 0, "the smallest group is a whole number of vectors");

/// Packed weights [N, K].
struct Weights {
  const uint8_t* packed;
  const float *scales, *biases;  // [N, num_groups]
  long N, K, bits, group_size;
  long num_groups = K / group_size;

  const uint8_t* column(long n) const { return packed + n * K * bits / 8; }
};

/// Rows of x as 16-bit integers.
struct Rounded {
  std::vector<int16_t> values;  // [M, K]
  std::vector<float> scales;    // [M, num_groups], what 1 of the group's integers stands for
  std::vector<float> sums;      // [M, num_groups], of the group's entries before they were rounded
};

/// PANEL columns of weights side by side, so that a vector holds the same place of LANES columns.
struct Panel {
  std::vector<int32_t> pairs;         // [K / 2, PANEL], two 16-bit integers each
  std::vector<float> scales, biases;  // [num_groups, PANEL]
};

/// One group of x as integers from -32767 to 32767, its largest entry as the largest of them.
///
/// Returns what 1 stands for. Entries that are not finite are 0; the group's sum is what hands them on.
static float round_group(const float* x, long group_size, int16_t* rounded) {
  float largest = 0;
  for (long i = 0; i < group_size; i++) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
  const float factor = largest > 0 ? 32767 / largest : 0;
  for (long i = 0; i < group_size; i++) rounded[i] = static_cast<int16_t>(std::rint(x[i] * factor));
  return largest / 32767;
}

static Rounded round_rows(const float* x, long size, long group_size) {
  const long num_groups = size / group_size;
  Rounded rounded{std::vector<int16_t>(size), std::vector<float>(num_groups), std::vector<float>(num_groups)};
  parallel_for(num_groups, 512, [&](long first, long last) {
    for (long group = first; group < last; group++) {
      const float* entries = x + group * group_size;
      rounded.scales[group] = round_group(entries, group_size, &rounded.values[group * group_size]);
      float sum = 0;
      for (long i = 0; i < group_size; i++) sum += entries[i];
      rounded.sums[group] = sum;
    }
  });
  return rounded;
}

/// The next PAIRS weights as 16-bit integers, in their order.
template <int BITS>
static Ints unpack_pairs(const uint8_t* packed) {
  if constexpr (BITS == 8) return load_byte_pairs(packed);
  const Ints bytes = load_bytes(packed);
  return (bytes | bytes << 12) & 0x000F000F;
}

/// ROWS rows from `first_row` on times NUM_COLUMNS columns from n on, where they lie.
template <int BITS, int ROWS, int NUM_COLUMNS>
static void multiply_columns(const Rounded& x, long first_row, const Weights& weights, long n, float* output) {
  const long K = weights.K, group_size = weights.group_size, num_groups = weights.num_groups;
  const long num_bytes = K * BITS / 8;
  const uint8_t* packed = weights.column(n);
  const float *scales = weights.scales + n * num_groups, *biases = weights.biases + n * num_groups;
  const int16_t* values = &x.values[first_row * K];
  const float *x_scales = &x.scales[first_row * num_groups], *x_sums = &x.sums[first_row * num_groups];
  Floats sums[ROWS][NUM_COLUMNS] = {};
  float bias_sums[ROWS][NUM_COLUMNS] = {};
  for (long group = 0; group < num_groups; group++) {
    Ints dots[ROWS][NUM_COLUMNS] = {};
    for (long k = 0; k < group_size; k += PAIRS) {
      for (int column = 0; column < NUM_COLUMNS; column++) {
        __builtin_prefetch(packed + column * num_bytes + PREFETCH);
        const Ints pairs = unpack_pairs<BITS>(packed + column * num_bytes);
        for (int row = 0; row < ROWS; row++) {
          dots[row][column] = add_dot_pairs(dots[row][column], pairs, load_ints(values + row * K + k));
        }
      }
      packed += PAIRS * BITS / 8;
    }
    values += group_size;
    for (int row = 0; row < ROWS; row++) {
      const float x_scale = x_scales[row * num_groups + group], x_sum = x_sums[row * num_groups + group];
      for (int column = 0; column < NUM_COLUMNS; column++) {
        const long place = column * num_groups + group;
        sums[row][column] += to_floats(dots[row][column]) * (scales[place] * x_scale);
        bias_sums[row][column] += biases[place] * x_sum;
      }
    }
  }
  for (int row = 0; row < ROWS; row++) {
    for (int column = 0; column < NUM_COLUMNS; column++) {
      output[(first_row + row) * weights.N + n + column] = sum(sums[row][column]) + bias_sums[row][column];
    }
  }
}

/// The rows from `first_row` to M times column n: ROWS at a time, then what is left.
template <int BITS, int ROWS>
static void multiply_column_rows(const Rounded& x, long first_row, long M, const Weights& weights, long n,
                                 float* output) {
  for (; first_row + ROWS <= M; first_row += ROWS) multiply_columns<BITS, ROWS, 1>(x, first_row, weights, n, output);
  if constexpr (ROWS > 1) multiply_column_rows<BITS, ROWS - 1>(x, first_row, M, weights, n, output);
}

/// All M rows times the columns from n to `end`.
template <int BITS>
static void multiply_where_they_lie(const Rounded& x, long M, const Weights& weights, long n, long end,
                                    float* output) {
  auto multiply_pair = M == 1 ? multiply_columns<BITS, 1, 2> : multiply_columns<BITS, PAIR_ROWS, 2>;
  if (M <= PAIR_ROWS) {
    for (; n + 2 <= end; n += 2) multiply_pair(x, 0, weights, n, output);
  }
  for (; n < end; n++) multiply_column_rows<BITS, COLUMN_ROWS>(x, 0, M, weights, n, output);
}

/// The codes of PANEL columns, of `num_words` words each, in pairs of 16-bit integers.
template <int BITS>
static void unpack_panel(const uint32_t* columns, long num_words, int32_t* pairs) {
  constexpr int WORD_PAIRS = 16 / BITS, PAIR_BITS = 2 * BITS;
  for (long word = 0; word < num_words; word += 4) {
    for (int vector = 0; vector < TILE_VECTORS; vector++) {
      Ints words[4];
      load_columns(columns + vector * LANES * num_words + word, num_words, words);
      for (int i = 0; i < 4 * WORD_PAIRS; i++) {
        const Ints pair = words[i / WORD_PAIRS] >> PAIR_BITS * (i % WORD_PAIRS) & ((1 << PAIR_BITS) - 1);
        const Ints halves = (pair | pair << (16 - BITS)) & ((1 << BITS) - 1) * 0x00010001;
        store(pairs + (word * WORD_PAIRS + i) * PANEL + vector * LANES, halves);
      }
    }
  }
}

/// The numbers of PANEL columns' groups, group by group.
static void gather_groups(const float* columns, long num_groups, float* panel) {
  for (long group = 0; group < num_groups; group++) {
    for (int column = 0; column < PANEL; column++) *panel++ = columns[column * num_groups + group];
  }
}

static Panel gather_panel(const Weights& weights, long first_column) {
  const long num_groups = weights.num_groups, places = num_groups * PANEL, num_words = weights.K * weights.bits / 32;
  Panel panel{std::vector<int32_t>(weights.K / 2 * PANEL), std::vector<float>(places), std::vector<float>(places)};
  auto unpack = weights.bits == 4 ? unpack_panel<4> : unpack_panel<8>;
  unpack(reinterpret_cast<const uint32_t*>(weights.column(first_column)), num_words, panel.pairs.data());
  gather_groups(weights.scales + first_column * num_groups, num_groups, panel.scales.data());
  gather_groups(weights.biases + first_column * num_groups, num_groups, panel.biases.data());
  return panel;
}

/// ROWS rows from `first_row` on times a panel's columns, of which `output` is the first's place.
///
/// Within a group all is integers, and they cannot overflow: 128 times 255 times 32767 fits in 32 bits.
template <int ROWS>
static void multiply_tile(const Rounded& x, long first_row, const Panel& panel, const Weights& weights,
                          float* output) {
  const long K = weights.K, num_groups = weights.num_groups;
  const int16_t* values = &x.values[first_row * K];
  const int32_t* pairs = panel.pairs.data();
  Floats sums[ROWS][TILE_VECTORS] = {};
  for (long group = 0; group < num_groups; group++) {
    Ints dots[ROWS][TILE_VECTORS] = {};
    for (long k = 0; k < weights.group_size; k += 2) {
      for (int row = 0; row < ROWS; row++) {
        int32_t pair;
        memcpy(&pair, values + row * K + k, sizeof(pair));
        for (int vector = 0; vector < TILE_VECTORS; vector++) {
          dots[row][vector] = add_dot_pairs(dots[row][vector], load_ints(pairs + vector * LANES), broadcast(pair));
        }
      }
      pairs += PANEL;
    }
    values += weights.group_size;
    for (int row = 0; row < ROWS; row++) {
      const long x_group = (first_row + row) * num_groups + group;
      for (int vector = 0; vector < TILE_VECTORS; vector++) {
        const long place = group * PANEL + vector * LANES;
        sums[row][vector] += to_floats(dots[row][vector]) * (load(&panel.scales[place]) * x.scales[x_group]);
        sums[row][vector] += load(&panel.biases[place]) * x.sums[x_group];
      }
    }
  }
  for (int row = 0; row < ROWS; row++) {
    for (int vector = 0; vector < TILE_VECTORS; vector++) {
      store(output + (first_row + row) * weights.N + vector * LANES, sums[row][vector]);
    }
  }
}

/// The rows from `first_row` to M times a panel: ROWS at a time, then what is left.
template <int ROWS>
static void multiply_tile_rows(const Rounded& x, long first_row, long M, const Panel& panel, const Weights& weights,
                               float* output) {
  for (; first_row + ROWS <= M; first_row += ROWS) multiply_tile<ROWS>(x, first_row, panel, weights, output);
  if constexpr (ROWS > 1) multiply_tile_rows<ROWS - 1>(x, first_row, M, panel, weights, output);
}

/// The product of activations, rounded to 16 bits, with packed weights.
///
/// inputs, outputs and numbers: as for quantized_matmul_simple; group_size is 32, 64 or 128.
KERNEL integer_matmul(const Array* inputs, const Array* outputs, const double* numbers) {
  const long K = inputs[0].length(-1), M = inputs[0].size() / K, bits = numbers[0], group_size = numbers[1];
  const Weights weights{inputs[1].data<uint8_t>(), inputs[2].data<float>(), inputs[3].data<float>(),
                        inputs[1].length(0), K, bits, group_size};
  const Rounded x = round_rows(inputs[0].data<float>(), M * K, group_size);
  float* output = outputs[0].data<float>();

  const long num_panels = M < MANY_ROWS ? 0 : weights.N / PANEL;
  parallel_for(num_panels, 1, [&](long first, long last) {
    for (long n = first * PANEL; n < last * PANEL; n += PANEL) {
      multiply_tile_rows<TILE_ROWS>(x, 0, M, gather_panel(weights, n), weights, output + n);
    }
  });
  const long num_done = num_panels * PANEL;
  auto multiply = bits == 4 ? multiply_where_they_lie<4> : multiply_where_they_lie<8>;
  parallel_for(weights.N - num_done, 1 + TASK_SIZE / (K * M), [&](long first, long last) {
    multiply(x, M, weights, num_done + first, num_done + last, output);
  });
}
