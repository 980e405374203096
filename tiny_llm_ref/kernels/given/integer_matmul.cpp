// The product with packed weights in whole numbers: activations are rounded to 16 bits, of which a processor
// multiplies twice as many at a time as of floats, and weights need no scale until a group is done. Few rows meet
// each column where it lies, a word of codes in each lane; for many rows columns are put side by side, so that each
// is unpacked once. Either way a group's products are whole numbers, which any order adds up to the same, and the
// groups follow one after the other: the bits of a row do not depend on how many rows there are.
#include <algorithm>
#include <vector>

#include "kernel.h"
#include "simd.h"

constexpr int MANY_ROWS = 17;                // from here on columns are put side by side
constexpr int COLUMN_ROWS = 8;               // rows that a column meets at a time where it lies
constexpr int TILE_ROWS = 6;                 // rows and vectors of columns whose sums stay in registers
constexpr int TILE_VECTORS = 2;
constexpr int STRIP_VECTORS = 16;            // of products for each column, kept until its neighbours have theirs
constexpr int PREFETCH = 2048;               // words ahead that memory is asked for, or it would not answer in time
constexpr int GROUP_PREFETCH = 1024;         // the same for scales and biases
constexpr int CACHE_LINE = 16;               // floats
constexpr int PANEL = TILE_VECTORS * LANES;  // columns that are put side by side
constexpr int MAX_GROUP = 128;               // weights
constexpr long TASK_SIZE = 1 << 19;          // products that are worth another thread's waking up

/// Packed weights [N, K].
struct Weights {
  const uint32_t* packed;        // [N, num_words]
  const float *scales, *biases;  // [N, num_groups]
  long N, K, bits, group_size;
  long num_groups = K / group_size, num_words = K * bits / 32;
};

/// LANES columns of weights from n on, or as many as are there, whose scales and biases lie side by side.
struct Strip {
  long n, num_columns;
  const float *scales, *biases;  // [num_groups, LANES]
};

/// Rows of x as 16-bit integers, in pairs like those in which the codes of a word of weights come out of it.
struct Rounded {
  std::vector<int32_t> pairs;  // [M, K / 2]
  std::vector<float> scales;   // [M, num_groups], what 1 of the group's integers stands for
  std::vector<float> sums;     // [M, num_groups], of the group's entries before they were rounded
};

/// The same in the order in which the lanes of a vector come to them: lane i of a block takes its word i.
struct Laned {
  long M;
  std::vector<Ints> pairs;  // [blocks of LANES words, M, 16 / bits], the last block filled up with zeros
};

/// PANEL columns of weights side by side, so that a vector holds the same place of LANES columns.
struct Panel {
  std::vector<int32_t> pairs;         // [K / 2, PANEL]
  std::vector<float> scales, biases;  // [num_groups, PANEL]
};

/// The numbers of `width` columns' groups, `width` of each group side by side, into [num_groups, width]. Nothing is
/// read from `end` on.
static void gather_groups(const float* columns, const float* end, long num_groups, long width, float* target) {
  for (long first = 0; first < width; first += LANES) {
    const float* own = columns + first * num_groups;
    for (long i = 0; i < LANES * num_groups; i += CACHE_LINE) __builtin_prefetch(own + GROUP_PREFETCH + i);
    for (long group = 0; group < num_groups; group += 4) {
      Ints numbers[4] = {};
      const long count = std::min(4L, num_groups - group);
      if (own + LANES * num_groups - count + 4 <= end) {
        load_columns(reinterpret_cast<const uint32_t*>(own + group), num_groups, numbers);
      } else {
        for (long i = 0; i < count; i++)
          for (int column = 0; column < LANES; column++) memcpy(reinterpret_cast<float*>(&numbers[i]) + column, own + column * num_groups + group + i, 4);
      }
      for (long i = 0; i < count; i++) store(target + (group + i) * width + first, (Floats)numbers[i]);
    }
  }
}

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
static Rounded round_rows(const float* x, long size, long group_size) {
  const long num_groups = size / group_size;
  Rounded rounded{std::vector<int32_t>(size / 2), std::vector<float>(num_groups), std::vector<float>(num_groups)};
  parallel_for(num_groups, 512, [&](long first, long last) {
    for (long group = first; group < last; group++) {
      round_group<BITS>(x + group * group_size, group_size, &rounded.pairs[group * group_size / 2],
                        &rounded.scales[group], &rounded.sums[group]);
    }
  });
  return rounded;
}

/// What `multiply_strip` reads one after the other lies so.
template <int BITS>
static Laned arrange(const Rounded& rounded, long M, const Weights& weights) {
  constexpr int NUM_PAIRS = 16 / BITS;
  const long num_words = weights.num_words, num_blocks = (num_words + LANES - 1) / LANES;
  Laned laned{M, std::vector<Ints>(M * num_blocks * NUM_PAIRS)};
  for (long row = 0; row < M; row++) {
    const int32_t* pairs = &rounded.pairs[row * num_words * NUM_PAIRS];
    for (long word = 0; word < num_words; word++) {
      Ints* target = &laned.pairs[(word / LANES * M + row) * NUM_PAIRS];
      for (int i = 0; i < NUM_PAIRS; i++) target[i][word % LANES] = *pairs++;
    }
  }
  return laned;
}

/// The sums with a group added, of whose integers and codes `dots` are the products.
static inline Floats add_group(Floats sums, Ints dots, Floats scales, float x_scale, Floats biases, float x_sum) {
  sums += to_floats(dots) * (scales * x_scale);
  return sums + biases * x_sum;
}

/// The dots of ROWS rows from `first_row` on with a block of a column's words, lane by lane.
template <int BITS, int ROWS>
static inline void multiply_block(const Laned& x, long first_row, long block, Ints words, Ints dots[ROWS]) {
  constexpr int NUM_PAIRS = 16 / BITS, CODE = ((1 << BITS) - 1) * 0x00010001;
  const Ints* pairs = &x.pairs[(block * x.M + first_row) * NUM_PAIRS];
  for (int pair = 0; pair < NUM_PAIRS; pair++) {
    const Ints codes = words >> BITS * pair & CODE;
    for (int row = 0; row < ROWS; row++) dots[row] = add_dot_pairs(dots[row], codes, pairs[row * NUM_PAIRS + pair]);
  }
}

/// The dots of ROWS rows from `first_row` on with `num_blocks` blocks of a column's words, one after the other.
template <int BITS, int ROWS>
static inline void multiply_blocks(const Laned& x, long first_row, const uint32_t* column, long num_words, long block,
                                   long num_blocks, Ints (*dots)[LANES][ROWS]) {
  for (long i = 0; i < num_blocks; i++) {
    const long place = (block + i) * LANES;
    __builtin_prefetch(column + place + PREFETCH);
    const Ints words = place + LANES > num_words ? load_first(column + place, num_words - place) : load_ints(column + place);
    Ints own[ROWS];
    for (int row = 0; row < ROWS; row++) own[row] = Ints{};
    multiply_block<BITS, ROWS>(x, first_row, block + i, words, own);
    for (int row = 0; row < ROWS; row++) dots[i][0][row] = own[row];
  }
}

/// ROWS rows from `first_row` on times a strip. Dots come by column, a word in each lane; each quarter of a vector is
/// added up, and the vectors are turned until one holds the same four words of all columns.
template <int BITS, int ROWS>
static void multiply_strip(const Rounded& x, const Laned& laned, long first_row, const Weights& weights,
                           const Strip& strip, float* output) {
  constexpr int MAX_BLOCKS = STRIP_VECTORS / ROWS, QUARTERS = LANES / 4;
  const long num_words = weights.num_words;
  const int group_shift = __builtin_ctzl(weights.group_size * BITS / 128);  // a group has 2^group_shift quarters
  Floats sums[ROWS];
  Ints group_dots[ROWS];
  for (int row = 0; row < ROWS; row++) sums[row] = Floats{}, group_dots[row] = Ints{};
  for (long first = 0; first * LANES < num_words; first += MAX_BLOCKS) {
    const long num_blocks = std::min<long>(MAX_BLOCKS, (num_words + LANES - 1) / LANES - first);
    Ints dots[MAX_BLOCKS][LANES][ROWS];
    for (long i = 0; i < LANES; i++) {
      const uint32_t* column = weights.packed + (strip.n + std::min(i, strip.num_columns - 1)) * num_words;
      multiply_blocks<BITS, ROWS>(laned, first_row, column, num_words, first, num_blocks,
                                  reinterpret_cast<Ints(*)[LANES][ROWS]>(dots[0][i]));
    }
    for (long block = first; block < first + num_blocks; block++) {
      Ints quarters[ROWS][QUARTERS];
      for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < QUARTERS; i++) {
          const Ints(*own)[ROWS] = &dots[block - first][4 * i];
          const Ints columns[4] = {own[0][row], own[1][row], own[2][row], own[3][row]};
          quarters[row][i] = add_up_quarters(columns);
        }
        turn_quarters(quarters[row]);
      }
      for (int i = 0; i < QUARTERS; i++) {
        const long quarter = block * QUARTERS + i, group = quarter >> group_shift;
        if (quarter * 4 >= num_words) break;
        for (int row = 0; row < ROWS; row++) group_dots[row] += quarters[row][i];
        if ((quarter + 1) >> group_shift == group) continue;
        const Floats scales = load(strip.scales + group * LANES), biases = load(strip.biases + group * LANES);
        for (int row = 0; row < ROWS; row++) {
          const long x_group = (first_row + row) * weights.num_groups + group;
          sums[row] = add_group(sums[row], group_dots[row], scales, x.scales[x_group], biases, x.sums[x_group]);
          group_dots[row] = Ints{};
        }
      }
    }
  }
  for (int row = 0; row < ROWS; row++) {
    float* target = output + (first_row + row) * weights.N + strip.n;
    if (strip.num_columns == LANES) {
      store(target, sums[row]);
    } else {
      store_first(target, sums[row], strip.num_columns);
    }
  }
}

/// The rows from `first_row` to M times a strip: ROWS at a time, then what is left.
template <int BITS, int ROWS>
static void multiply_strip_rows(const Rounded& x, const Laned& laned, long first_row, const Weights& weights,
                                const Strip& strip, float* output) {
  for (; first_row + ROWS <= laned.M; first_row += ROWS) {
    multiply_strip<BITS, ROWS>(x, laned, first_row, weights, strip, output);
  }
  if constexpr (ROWS > 1) multiply_strip_rows<BITS, ROWS - 1>(x, laned, first_row, weights, strip, output);
}

/// All rows times the columns from n to `end`, where they lie.
template <int BITS>
static void multiply_where_they_lie(const Rounded& x, const Laned& laned, const Weights& weights, long n, long end,
                                    float* output) {
  const long num_groups = weights.num_groups, size = num_groups * LANES;
  std::vector<float> scales(size), biases(size), last(size);  // of a strip; of one that is not filled
  for (; n < end; n += LANES) {
    const Strip strip{n, std::min<long>(LANES, end - n), scales.data(), biases.data()};
    auto gather = [&](const float* grid, float* target) {
      const float *columns = grid + n * num_groups, *end_of_grid = grid + weights.N * num_groups;
      if (strip.num_columns < LANES) {
        std::copy(columns, columns + strip.num_columns * num_groups, last.begin());
        columns = last.data(), end_of_grid = columns + size;
      }
      gather_groups(columns, end_of_grid, num_groups, LANES, target);
    };
    gather(weights.scales, scales.data());
    gather(weights.biases, biases.data());
    multiply_strip_rows<BITS, COLUMN_ROWS>(x, laned, 0, weights, strip, output);
  }
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

static Panel gather_panel(const Weights& weights, long first_column) {
  const long num_groups = weights.num_groups, num_words = weights.num_words, place = first_column * num_groups;
  Panel panel{std::vector<int32_t>(weights.K / 2 * PANEL), std::vector<float>(num_groups * PANEL),
              std::vector<float>(num_groups * PANEL)};
  const long size = weights.N * num_groups;
  gather_groups(weights.scales + place, weights.scales + size, num_groups, PANEL, panel.scales.data());
  gather_groups(weights.biases + place, weights.biases + size, num_groups, PANEL, panel.biases.data());
  auto unpack = weights.bits == 4 ? unpack_panel<4> : unpack_panel<8>;
  unpack(weights.packed + first_column * num_words, num_words, panel.pairs.data());
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
        sums[row][vector] = add_group(sums[row][vector], dots[row][vector], load(&panel.scales[place]),
                                      x.scales[x_group], load(&panel.biases[place]), x.sums[x_group]);
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
  const long num_strips = (weights.N - num_done + LANES - 1) / LANES;
  parallel_for(num_strips, 1 + TASK_SIZE / (K * M * LANES), [&](long first, long last) {
    multiply(x, laned, weights, num_done + first * LANES, std::min(num_done + last * LANES, weights.N), output);
  });
}
