// The product with packed weights in whole numbers: activations are rounded to 16 bits, of which a processor
// multiplies twice as many at a time as of floats, and weights need no scale until a group is done. Few rows meet
// each column where it lies, a word of codes in each lane; for many rows columns are put side by side, so that each
// is unpacked once.
#include <algorithm>
#include <vector>

#include "kernel.h"
#include "simd.h"

constexpr int MANY_ROWS = 17;                // from here on columns are put side by side
constexpr int COLUMN_ROWS = 8;               // rows that a column meets at a time where it lies
constexpr int PAIR_ROWS = 2;                 // up to these columns come in pairs: sums that do not wait for each other
constexpr int TILE_ROWS = 6;                 // rows and vectors of columns whose sums stay in registers
constexpr int TILE_VECTORS = 2;
constexpr int PANEL = TILE_VECTORS * LANES;  // columns that are put side by side
constexpr int MAX_GROUP = 128;               // weights
constexpr long TASK_SIZE = 1 << 19;          // products that are worth another thread's waking up
constexpr int PREFETCH = 2048;               // words ahead that memory is asked for, or it would not answer in time
constexpr int GROUP_PREFETCH = 512;          // the same for scales and biases

/// Packed weights [N, K].
struct Weights {
  const uint32_t* packed;        // [N, num_words]
  const float *scales, *biases;  // [N, num_groups]
  long N, K, bits, group_size;
  long num_groups = K / group_size, num_words = K * bits / 32;
};

/// Rows of x as 16-bit integers, in pairs like those in which the codes of a word of weights come out of it.
struct Rounded {
  std::vector<int32_t> pairs;  // [M, K / 2]
  std::vector<float> scales;   // [M, num_groups], what 1 of the group's integers stands for
  std::vector<float> sums;     // [M, num_groups], of the group's entries before they were rounded
};

/// The same in the order in which the lanes of a vector come to them: lane i of a block takes its word i.
struct Laned {
  long M, num_blocks;          // blocks of LANES words, the last one filled up with zeros
  std::vector<Ints> pairs;     // [num_blocks, M, 16 / bits]
  std::vector<Floats> scales;  // [num_blocks, M], of the lane's group
  std::vector<Floats> sums;    // [num_blocks, M], of the group in its first lane
};

/// PANEL columns of weights side by side, so that a vector holds the same place of LANES columns.
struct Panel {
  std::vector<int32_t> pairs;         // [K / 2, PANEL]
  std::vector<float> scales, biases;  // [num_groups, PANEL]
};

/// One group of x as integers from -32767 to 32767, its largest entry as the largest of them.
///
/// Returns what 1 stands for. Entries that are not finite are 0; the group's sum is what hands them on.
template <int BITS>
static float round_group(const float* x, long group_size, int32_t* pairs) {
  constexpr int NUM_PAIRS = 16 / BITS;
  float largest = 0;
  for (long i = 0; i < group_size; i++) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
  const float factor = largest > 0 ? 32767 / largest : 0;
  int32_t rounded[MAX_GROUP];
  for (long i = 0; i < group_size; i++) rounded[i] = static_cast<int16_t>(std::rint(x[i] * factor));
  for (int32_t* word = rounded; word < rounded + group_size; word += 2 * NUM_PAIRS) {
    for (int i = 0; i < NUM_PAIRS; i++) *pairs++ = (word[i] & 0xFFFF) | word[NUM_PAIRS + i] << 16;
  }
  return largest / 32767;
}

template <int BITS>
static Rounded round_rows(const float* x, long size, long group_size) {
  const long num_groups = size / group_size;
  Rounded rounded{std::vector<int32_t>(size / 2), std::vector<float>(num_groups), std::vector<float>(num_groups)};
  parallel_for(num_groups, 512, [&](long first, long last) {
    for (long group = first; group < last; group++) {
      const float* entries = x + group * group_size;
      rounded.scales[group] = round_group<BITS>(entries, group_size, &rounded.pairs[group * group_size / 2]);
      float sum = 0;
      for (long i = 0; i < group_size; i++) sum += entries[i];
      rounded.sums[group] = sum;
    }
  });
  return rounded;
}

/// What `multiply_columns` reads one after the other lies so.
template <int BITS>
static Laned arrange(const Rounded& rounded, long M, const Weights& weights) {
  constexpr int NUM_PAIRS = 16 / BITS;
  const long num_words = weights.num_words, num_blocks = (num_words + LANES - 1) / LANES;
  const long group_words = weights.group_size * BITS / 32;
  Laned laned{M, num_blocks, std::vector<Ints>(M * num_blocks * NUM_PAIRS), std::vector<Floats>(M * num_blocks),
              std::vector<Floats>(M * num_blocks)};
  for (long row = 0; row < M; row++) {
    const int32_t* pairs = &rounded.pairs[row * num_words * NUM_PAIRS];
    for (long word = 0; word < num_words; word++) {
      const long place = word / LANES * M + row, lane = word % LANES;
      for (int i = 0; i < NUM_PAIRS; i++) laned.pairs[place * NUM_PAIRS + i][lane] = *pairs++;
      const long group = row * weights.num_groups + word / group_words;
      laned.scales[place][lane] = rounded.scales[group];
      if (word % group_words == 0) laned.sums[place][lane] = rounded.sums[group];
    }
  }
  return laned;
}

/// ROWS rows from `first_row` on times NUM_COLUMNS columns from n on, where they lie.
template <int BITS, int ROWS, int NUM_COLUMNS>
static void multiply_columns(const Laned& x, long first_row, const Weights& weights, long n, float* output) {
  constexpr int NUM_PAIRS = 16 / BITS, CODE = ((1 << BITS) - 1) * 0x00010001;
  const long num_words = weights.num_words, num_blocks = x.num_blocks;
  const int group_shift = __builtin_ctzl(weights.group_size * BITS / 32);  // a group has 2^group_shift words
  const Ints group_of_lane = count_lanes() >> group_shift;
  Floats sums[ROWS][NUM_COLUMNS] = {};
  for (long block = 0; block < num_blocks; block++) {
    const Ints* pairs = &x.pairs[(block * x.M + first_row) * NUM_PAIRS];
    const Floats *x_scales = &x.scales[block * x.M + first_row], *x_sums = &x.sums[block * x.M + first_row];
    const long word = block * LANES, num_lanes = std::min<long>(LANES, num_words - word);
    const long group = word >> group_shift, num_groups = std::min<long>(LANES, weights.num_groups - group);
    for (int column = 0; column < NUM_COLUMNS; column++) {
      const uint32_t* packed = weights.packed + (n + column) * num_words + word;
      __builtin_prefetch(packed + PREFETCH);
      const Ints words = load_first(packed, num_lanes);
      Ints dots[ROWS] = {};
      for (int pair = 0; pair < NUM_PAIRS; pair++) {
        const Ints codes = words >> BITS * pair & CODE;
        for (int row = 0; row < ROWS; row++) {
          dots[row] = add_dot_pairs(dots[row], codes, pairs[row * NUM_PAIRS + pair]);
        }
      }
      const long place = (n + column) * weights.num_groups + group;
      __builtin_prefetch(weights.scales + place + GROUP_PREFETCH);
      __builtin_prefetch(weights.biases + place + GROUP_PREFETCH);
      const Floats scales = spread(weights.scales + place, group_of_lane, num_groups);
      const Floats biases = spread(weights.biases + place, group_of_lane, num_groups);
      for (int row = 0; row < ROWS; row++) {
        sums[row][column] += to_floats(dots[row]) * x_scales[row] * scales + x_sums[row] * biases;
      }
    }
  }
  for (int row = 0; row < ROWS; row++) {
    for (int column = 0; column < NUM_COLUMNS; column++) {
      output[(first_row + row) * weights.N + n + column] = sum(sums[row][column]);
    }
  }
}

/// The rows from `first_row` to M times column n: ROWS at a time, then what is left.
template <int BITS, int ROWS>
static void multiply_column_rows(const Laned& x, long first_row, long M, const Weights& weights, long n,
                                 float* output) {
  for (; first_row + ROWS <= M; first_row += ROWS) multiply_columns<BITS, ROWS, 1>(x, first_row, weights, n, output);
  if constexpr (ROWS > 1) multiply_column_rows<BITS, ROWS - 1>(x, first_row, M, weights, n, output);
}

/// All M rows times the columns from n to `end`.
template <int BITS>
static void multiply_where_they_lie(const Laned& x, long M, const Weights& weights, long n, long end,
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
  constexpr int WORD_PAIRS = 16 / BITS, CODE = ((1 << BITS) - 1) * 0x00010001;
  for (long word = 0; word < num_words; word += 4) {
    for (int vector = 0; vector < TILE_VECTORS; vector++) {
      Ints words[4];
      load_columns(columns + vector * LANES * num_words + word, num_words, words);
      for (int i = 0; i < 4 * WORD_PAIRS; i++) {
        const Ints pair = words[i / WORD_PAIRS] >> BITS * (i % WORD_PAIRS) & CODE;
        store(pairs + (word * WORD_PAIRS + i) * PANEL + vector * LANES, pair);
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
  const long num_groups = weights.num_groups, places = num_groups * PANEL, num_words = weights.num_words;
  Panel panel{std::vector<int32_t>(weights.K / 2 * PANEL), std::vector<float>(places), std::vector<float>(places)};
  auto unpack = weights.bits == 4 ? unpack_panel<4> : unpack_panel<8>;
  unpack(weights.packed + first_column * num_words, num_words, panel.pairs.data());
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
  const Weights weights{inputs[1].data<uint32_t>(), inputs[2].data<float>(), inputs[3].data<float>(),
                        inputs[1].length(0), K, bits, group_size};
  const Rounded x = (bits == 4 ? round_rows<4> : round_rows<8>)(inputs[0].data<float>(), M * K, group_size);
  float* output = outputs[0].data<float>();

  const long num_panels = M < MANY_ROWS ? 0 : weights.N / PANEL;
  parallel_for(num_panels, 1, [&](long first, long last) {
    for (long n = first * PANEL; n < last * PANEL; n += PANEL) {
      multiply_tile_rows<TILE_ROWS>(x, 0, M, gather_panel(weights, n), weights, output + n);
    }
  });
  const long num_done = num_panels * PANEL;
  if (num_done == weights.N) return;
  const Laned laned = (bits == 4 ? arrange<4> : arrange<8>)(x, M, weights);
  auto multiply = bits == 4 ? multiply_where_they_lie<4> : multiply_where_they_lie<8>;
  parallel_for(weights.N - num_done, 1 + TASK_SIZE / (K * M), [&](long first, long last) {
    multiply(laned, M, weights, num_done + first, num_done + last, output);
  });
}
