// The product with packed weights in whole numbers: activations are rounded to 16 bits, of which a processor
// multiplies twice as many at a time as of floats, and weights need no scale until a group is done. Weights lie as
// `arrange` of integer_matmul.py puts them: STRIP columns side by side, so that a vector holds the same word of
// LANES columns. Few rows unpack each word as they meet it; for many, a panel of columns is unpacked once. Either way a
// group's products are whole numbers, which any order adds up to the same, and the groups follow one after the
// other: the bits of a row do not depend on how many rows there are.
#include <algorithm>
#include <vector>

#include "kernel.h"
#include "simd.h"

constexpr int STRIP = 16;                    // columns whose words lie side by side
constexpr int MANY_ROWS = 17;                // from here on columns are unpacked once for all rows
constexpr int STRIP_ROWS = 8;                // rows that meet a word at a time as it is unpacked
constexpr int CHAINS = 4;                    // dots that are added to at a time, so that few wait for the one before
constexpr int TILE_ROWS = 6;                 // rows and vectors of columns whose sums stay in registers
constexpr int TILE_VECTORS = 2;
constexpr int PREFETCH = 2048;               // words ahead that memory is asked for, or it would not answer in time
constexpr int PANEL = TILE_VECTORS * LANES;  // columns that are unpacked together
constexpr int MAX_GROUP = 128;               // weights
constexpr long TASK_SIZE = 1 << 19;          // products that are worth another thread's waking up

enum GridType { FLOAT32, FLOAT16, BFLOAT16 };

/// Scales and biases of a group of LANES columns.
struct Grid {
  Floats scales, biases;
};

/// Packed weights of N columns: of each strip the groups, of each group its words and then its scales and biases,
/// which share a word if they have 16 bits.
struct Weights {
  const uint32_t* words;  // [strips, num_groups, group_words + 1 or 2, STRIP]
  long N, K, bits, group_size;
  GridType grid_type;
  long num_groups = K / group_size, group_words = group_size * bits / 32;
  long group_length = (group_words + (grid_type == FLOAT32 ? 2 : 1)) * STRIP;

  /// What belongs to a group of the columns from n on.
  const uint32_t* group(long n, long group) const {
    return words + (n / STRIP * num_groups + group) * group_length + n % STRIP;
  }

  Grid grid(const uint32_t* group) const {
    const Ints first = load_ints(group + group_words * STRIP);
    if (grid_type == FLOAT32) return {(Floats)first, (Floats)load_ints(group + (group_words + 1) * STRIP)};
    if (grid_type == BFLOAT16) return {(Floats)(first << 16), (Floats)(first >> 16 << 16)};
    return {halves_to_floats(first), halves_to_floats(first >> 16)};
  }
};

/// Rows of x as 16-bit integers, in pairs like those in which the codes of a word of weights come out of it.
struct Rounded {
  long M;
  std::vector<int32_t> pairs;  // [M, K / 2]
  std::vector<float> scales;   // [M, num_groups], what 1 of the group's integers stands for
  std::vector<float> sums;     // [M, num_groups], of the group's entries before they were rounded
};

/// PANEL columns of weights side by side, so that a vector holds the same place of LANES columns.
struct Panel {
  std::vector<int32_t> pairs;         // [K / 2, PANEL]
  std::vector<float> scales, biases;  // [num_groups, PANEL]
};

/// One group of x as integers from -32767 to 32767, its largest entry as the largest of them.
///
/// Entries that are not finite are 0; the group's sum is what hands them on.
template <int BITS>
static void round_group(const float* x, long group_size, int32_t* pairs, float* scale, float* total) {
  constexpr int NUM_PAIRS = 16 / BITS;
  Floats largest_entries = {}, sums = {};
  for (long i = 0; i < group_size; i += LANES) {
    const Floats entries = load(x + i), sizes = entries < 0.0f ? -entries : entries;
    largest_entries = sizes > largest_entries ? sizes : largest_entries;
    sums += entries;
  }
  float largest = 0;
  for (int lane = 0; lane < LANES; lane++) largest = std::max(largest, largest_entries[lane]);
  const float factor = largest > 0 ? 32767 / largest : 0;
  int32_t rounded[MAX_GROUP];
  for (long i = 0; i < group_size; i++) rounded[i] = static_cast<int16_t>(std::rint(x[i] * factor));
  for (int32_t* word = rounded; word < rounded + group_size; word += 2 * NUM_PAIRS) {
    for (int i = 0; i < NUM_PAIRS; i++) *pairs++ = (word[i] & 0xFFFF) | word[NUM_PAIRS + i] << 16;
  }
  *scale = largest / 32767, *total = sum(sums);
}

template <int BITS>
static Rounded round_rows(const float* x, long M, long K, long group_size) {
  const long num_groups = M * K / group_size;
  Rounded rounded{M, std::vector<int32_t>(M * K / 2), std::vector<float>(num_groups), std::vector<float>(num_groups)};
  parallel_for(num_groups, 512, [&](long first, long last) {
    for (long group = first; group < last; group++) {
      round_group<BITS>(x + group * group_size, group_size, &rounded.pairs[group * group_size / 2],
                        &rounded.scales[group], &rounded.sums[group]);
    }
  });
  return rounded;
}

/// The sums with a group added, of whose integers and codes `dots` are the products.
static inline Floats add_group(Floats sums, Ints dots, Grid grid, float x_scale, float x_sum) {
  sums += to_floats(dots) * (grid.scales * x_scale);
  return sums + grid.biases * x_sum;
}

/// ROWS rows from `first_row` on times the LANES columns from n on, or as many as there are.
template <int BITS, int ROWS>
static void multiply_strip(const Rounded& x, long first_row, const Weights& weights, long n, float* output) {
  constexpr int NUM_PAIRS = 16 / BITS, CODE = ((1 << BITS) - 1) * 0x00010001;
  constexpr int NUM_DOTS = ROWS <= CHAINS / 2 ? NUM_PAIRS : ROWS <= CHAINS ? 2 : 1;
  const long K = weights.K, num_groups = weights.num_groups;
  const int32_t* x_pairs = &x.pairs[first_row * K / 2];
  Floats sums[ROWS] = {};
  for (long group = 0; group < num_groups; group++) {
    const uint32_t* words = weights.group(n, group);
    Ints dots[ROWS][NUM_DOTS] = {};
    for (long word = 0; word < weights.group_words; word++) {
      __builtin_prefetch(words + word * STRIP + PREFETCH);
      const Ints packed = load_ints(words + word * STRIP);
      for (int pair = 0; pair < NUM_PAIRS; pair++) {
        const Ints codes = packed >> BITS * pair & CODE;
        for (int row = 0; row < ROWS; row++) {
          Ints& own = dots[row][pair % NUM_DOTS];
          own = add_dot_pairs(own, codes, broadcast(x_pairs[row * K / 2 + pair]));
        }
      }
      x_pairs += NUM_PAIRS;
    }
    const Grid grid = weights.grid(words);
    for (int row = 0; row < ROWS; row++) {
      for (int i = 1; i < NUM_DOTS; i++) dots[row][0] += dots[row][i];
      const long x_group = (first_row + row) * num_groups + group;
      sums[row] = add_group(sums[row], dots[row][0], grid, x.scales[x_group], x.sums[x_group]);
    }
  }
  const long num_columns = std::min<long>(LANES, weights.N - n);
  for (int row = 0; row < ROWS; row++) store_first(output + (first_row + row) * weights.N + n, sums[row], num_columns);
}

/// The rows from `first_row` to M times a strip: ROWS at a time, then what is left.
template <int BITS, int ROWS>
static void multiply_strip_rows(const Rounded& x, long first_row, const Weights& weights, long n, float* output) {
  for (; first_row + ROWS <= x.M; first_row += ROWS) multiply_strip<BITS, ROWS>(x, first_row, weights, n, output);
  if constexpr (ROWS > 1) multiply_strip_rows<BITS, ROWS - 1>(x, first_row, weights, n, output);
}

/// The PANEL columns from n on, their codes in pairs of 16-bit integers.
template <int BITS>
static Panel unpack_panel(const Weights& weights, long n) {
  constexpr int NUM_PAIRS = 16 / BITS, CODE = ((1 << BITS) - 1) * 0x00010001;
  const long num_groups = weights.num_groups, group_words = weights.group_words;
  Panel panel{std::vector<int32_t>(weights.K / 2 * PANEL), std::vector<float>(num_groups * PANEL),
              std::vector<float>(num_groups * PANEL)};
  for (long group = 0; group < num_groups; group++) {
    for (long first = 0; first < PANEL; first += LANES) {
      const uint32_t* words = weights.group(n + first, group);
      int32_t* pairs = &panel.pairs[group * group_words * NUM_PAIRS * PANEL + first];
      for (long word = 0; word < group_words; word++) {
        const Ints packed = load_ints(words + word * STRIP);
        for (int pair = 0; pair < NUM_PAIRS; pair++) {
          store(pairs + (word * NUM_PAIRS + pair) * PANEL, packed >> BITS * pair & CODE);
        }
      }
      const Grid grid = weights.grid(words);
      store(&panel.scales[group * PANEL + first], grid.scales);
      store(&panel.biases[group * PANEL + first], grid.biases);
    }
  }
  return panel;
}

/// ROWS rows from `first_row` on times a panel's columns, of which `output` is the first's place.
///
/// Within a group all is integers, and they cannot overflow: 128 times 255 times 32767 fits in 32 bits.
template <int ROWS>
static void multiply_tile(const Rounded& x, long first_row, const Panel& panel, const Weights& weights,
                          float* output) {
  const long K = weights.K, num_groups = weights.num_groups;
  const int32_t *x_pairs = &x.pairs[first_row * K / 2], *pairs = panel.pairs.data();
  Floats sums[ROWS][TILE_VECTORS] = {};
  for (long group = 0; group < num_groups; group++) {
    Ints dots[ROWS][TILE_VECTORS] = {};
    for (long pair = 0; pair < weights.group_size / 2; pair++) {
      for (int row = 0; row < ROWS; row++) {
        const Ints x_pair = broadcast(x_pairs[row * K / 2 + pair]);
        for (int vector = 0; vector < TILE_VECTORS; vector++) {
          dots[row][vector] = add_dot_pairs(dots[row][vector], load_ints(pairs + vector * LANES), x_pair);
        }
      }
      pairs += PANEL;
    }
    x_pairs += weights.group_size / 2;
    for (int row = 0; row < ROWS; row++) {
      const long x_group = (first_row + row) * num_groups + group;
      for (int vector = 0; vector < TILE_VECTORS; vector++) {
        const long place = group * PANEL + vector * LANES;
        const Grid grid{load(&panel.scales[place]), load(&panel.biases[place])};
        sums[row][vector] = add_group(sums[row][vector], dots[row][vector], grid, x.scales[x_group], x.sums[x_group]);
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
static void multiply_tile_rows(const Rounded& x, long first_row, const Panel& panel, const Weights& weights,
                               float* output) {
  for (; first_row + ROWS <= x.M; first_row += ROWS) multiply_tile<ROWS>(x, first_row, panel, weights, output);
  if constexpr (ROWS > 1) multiply_tile_rows<ROWS - 1>(x, first_row, panel, weights, output);
}

/// All columns: of many rows in panels, and the strips that are left; of few rows in strips.
template <int BITS>
static void multiply(const Rounded& x, const Weights& weights, float* output) {
  const long num_panels = x.M < MANY_ROWS ? 0 : weights.N / PANEL, num_done = num_panels * PANEL;
  parallel_for(num_panels, 1, [&](long first, long last) {
    for (long n = first * PANEL; n < last * PANEL; n += PANEL) {
      multiply_tile_rows<TILE_ROWS>(x, 0, unpack_panel<BITS>(weights, n), weights, output + n);
    }
  });
  const long num_strips = (weights.N - num_done + LANES - 1) / LANES;
  parallel_for(num_strips, 1 + TASK_SIZE / (weights.K * x.M * LANES), [&](long first, long last) {
    for (long i = first; i < last; i++) {
      multiply_strip_rows<BITS, STRIP_ROWS>(x, 0, weights, num_done + i * LANES, output);
    }
  });
}

/// The product of activations, rounded to 16 bits, with packed weights.
///
/// inputs: x [..., K], arranged weights; outputs: [..., N]; numbers: bits, 4 or 8, the group size, 32, 64 or 128, and
/// the GridType.
KERNEL integer_matmul(const Array* inputs, const Array* outputs, const double* numbers) {
  const long K = inputs[0].length(-1), M = inputs[0].size() / K, bits = numbers[0], group_size = numbers[1];
  if (M == 0) return;
  const Weights weights{inputs[1].data<uint32_t>(), outputs[0].length(-1), K, bits, group_size, GridType(numbers[2])};
  const Rounded x = (bits == 4 ? round_rows<4> : round_rows<8>)(inputs[0].data<float>(), M, K, group_size);
  (bits == 4 ? multiply<4> : multiply<8>)(x, weights, outputs[0].data<float>());
}
