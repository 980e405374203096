#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "kernel.h"
#include "simd.h"

constexpr long KEY_BLOCK = 64;       // keys whose scores are in memory at a time
constexpr long QUERY_BLOCK = 32;     // positions per task, for all query heads of a key head
constexpr long MAX_DECODE_ROWS = 8;  // with at most this many queries per key head, tasks split the keys instead
constexpr long KEYS_PER_TASK = 256;  // in that case
constexpr long KEYS_AHEAD = 16;      // keys that are prefetched before they are needed

/// One key head of one batch row, with the query heads that share it.
struct Head {
  const float *query, *key, *value, *mask;  // mask is nullptr if there is none
  long query_head_stride, query_stride, key_stride, value_stride;
  long mask_head_stride, mask_query_stride, mask_key_stride;
  long L, S, D, group_size;
  float scale;
  bool is_causal;
  const int32_t* block_table = nullptr;  // where keys and values lie in blocks: which block, in their order
  long block_size = 0;                   // then, keys of a block
  float (*widen)(uint16_t) = nullptr;    // for keys and values of 16 bits, which are then here
  const uint16_t *short_key = nullptr, *short_value = nullptr;
  long asked = 0;  // floats of a token's keys, and of its values, that are asked of memory ahead of time
};

/// The state of some queries: their scores for the current key block, and the softmax so far.
struct Rows {
  Rows(const Head& head, long first_position, long num_positions)
      : first_position(first_position), num_positions(num_positions), count(head.group_size * num_positions),
        queries(count * head.D), scores(count * KEY_BLOCK), outputs(count * head.D), maxima(count, -INFINITY),
        sums(count), widened(head.widen ? 2 * KEY_BLOCK * head.D : 0), keys(KEY_BLOCK + KEYS_AHEAD),
        values(KEY_BLOCK) {
    for (long row = 0; row < count; row++) {
      const float* source = head.query + group_member(row) * head.query_head_stride + position(row) * head.query_stride;
      for (long d = 0; d < head.D; d++) queries[row * head.D + d] = head.scale * source[d];
    }
  }

  long group_member(long row) const { return row / num_positions; }
  long position(long row) const { return first_position + row % num_positions; }

  long first_position, num_positions, count;
  std::vector<float> queries, scores, outputs, maxima, sums, widened;
  std::vector<const float*> keys, values;  // of the key block at hand, where each of them lies
};

/// c += a b for ROWS rows and VECTORS vectors of columns from `column` on. The sums stay in registers.
template <int ROWS, int VECTORS>
static void multiply_tile(const float* a, long a_stride, const float* const* b, long column, float* c, long c_stride,
                          long inner) {
  Floats sums[ROWS][VECTORS];
  for (int row = 0; row < ROWS; row++)
    for (int v = 0; v < VECTORS; v++) sums[row][v] = load(c + row * c_stride + v * LANES);
  for (long i = 0; i < inner; i++) {
    Floats columns[VECTORS];
    for (int v = 0; v < VECTORS; v++) columns[v] = load(b[i] + column + v * LANES);
    for (int row = 0; row < ROWS; row++)
      for (int v = 0; v < VECTORS; v++) sums[row][v] += a[row * a_stride + i] * columns[v];
  }
  for (int row = 0; row < ROWS; row++)
    for (int v = 0; v < VECTORS; v++) store(c + row * c_stride + v * LANES, sums[row][v]);
}

/// c += a b, [rows, inner] x [inner, columns], row i of b at b[i]; columns is a multiple of LANES.
static void multiply_add(const float* a, long a_stride, const float* const* b, float* c, long c_stride, long rows,
                         long inner, long columns) {
  for (long column = 0; column < columns;) {
    const bool is_wide = column + 4 * LANES <= columns;
    for (long row = 0; row < rows;) {
      const bool is_tall = row + 4 <= rows;
      auto tile = is_tall ? (is_wide ? multiply_tile<4, 4> : multiply_tile<4, 1>)
                          : (is_wide ? multiply_tile<1, 4> : multiply_tile<1, 1>);
      tile(a + row * a_stride, a_stride, b, column, c + row * c_stride + column, c_stride, inner);
      row += is_tall ? 4 : 1;
    }
    column += is_wide ? 4 * LANES : LANES;
  }
}

/// Convert some 16-bit entries to floats in `target`.
static const float* widen(const Head& head, const uint16_t* entries, float* target) {
  for (long d = 0; d < head.D; d++) target[d] = head.widen(entries[d]);
  return target;
}

/// The place of a token's keys and values, counted in tokens.
static long place_of(const Head& head, long token) {
  if (!head.block_table) return token;
  return head.block_table[token / head.block_size] * head.block_size + token % head.block_size;
}

/// Find the keys and values from `first_key` on, in place or converted to floats, and some keys after them.
static void find_block(const Head& head, Rows& rows, long first_key, long num_keys) {
  for (long j = 0; j < num_keys; j++) {
    const long place = place_of(head, first_key + j);
    if (head.widen) {
      rows.keys[j] = widen(head, head.short_key + place * head.key_stride, &rows.widened[j * head.D]);
      rows.values[j] = widen(head, head.short_value + place * head.value_stride, &rows.widened[(KEY_BLOCK + j) * head.D]);
    } else {
      rows.keys[j] = head.key + place * head.key_stride;
      rows.values[j] = head.value + place * head.value_stride;
    }
  }
  for (long j = num_keys; j < num_keys + KEYS_AHEAD; j++) {
    const long place = place_of(head, std::min(first_key + j, head.S - 1));
    rows.keys[j] = head.widen ? rows.keys[0] : head.key + place * head.key_stride;
  }
}

/// Prefetch a token's keys or values, so that they are in the cache when they are read.
static void ask_for(const Head& head, const float* entries) {
  for (long i = 0; i < head.asked; i += 16) __builtin_prefetch(entries + i);
}

/// Scores of ROWS queries and VECTORS vectors of keys from `key` on, whose dimensions lie in `turned`. Products are
/// added up in the order of `score_few`: a score must not depend on how many others there are.
template <int ROWS, int VECTORS>
static void score_tile(const float* queries, const float* turned, long key, float* scores, long D) {
  Floats totals[4][ROWS][VECTORS] = {};  // as `sum` adds up lanes
  for (long lane = 0; lane < LANES; lane++) {
    Floats sums[ROWS][VECTORS];
    for (int row = 0; row < ROWS; row++)
      for (int v = 0; v < VECTORS; v++) sums[row][v] = Floats{};
    const float* keys = turned + lane * KEY_BLOCK + key;
    for (long d = lane; d < D; d += LANES, keys += LANES * KEY_BLOCK) {
      Floats columns[VECTORS];
      for (int v = 0; v < VECTORS; v++) columns[v] = load(keys + v * LANES);
      for (int row = 0; row < ROWS; row++)
        for (int v = 0; v < VECTORS; v++) sums[row][v] += queries[row * D + d] * columns[v];
    }
    for (int row = 0; row < ROWS; row++)
      for (int v = 0; v < VECTORS; v++) totals[lane % 4][row][v] += sums[row][v];
  }
  for (int row = 0; row < ROWS; row++)
    for (int v = 0; v < VECTORS; v++)
      store(scores + row * KEY_BLOCK + key + v * LANES,
            (totals[0][row][v] + totals[1][row][v]) + (totals[2][row][v] + totals[3][row][v]));
}

/// Scores of many queries. The keys are transposed so that they lie along the lanes.
static void score_many(const Head& head, Rows& rows, long num_keys, std::vector<float>& turned) {
  turned.assign(head.D * KEY_BLOCK, 0.0f);
  for (long j = 0; j < num_keys; j++)
    for (long d = 0; d < head.D; d++) turned[d * KEY_BLOCK + j] = rows.keys[j][d];
  for (long row = 0; row < rows.count;) {
    const bool is_tall = row + 4 <= rows.count;
    auto tile = is_tall ? score_tile<4, 4> : score_tile<1, 4>;
    for (long key = 0; key < KEY_BLOCK; key += 4 * LANES)
      tile(&rows.queries[row * head.D], turned.data(), key, &rows.scores[row * KEY_BLOCK], head.D);
    row += is_tall ? 4 : 1;
  }
}

/// Scores of a few queries: dot products along the dimensions, with each key read where it lies in the cache.
/// Asks for each key's values and for the key KEYS_AHEAD further on, so that they arrive before they are read.
static void score_few(const Head& head, Rows& rows, long num_keys) {
  NOT_WRITTEN_YET("week 2 day 5 task 1: score_few is not written yet");
}

/// Add the mask, or set the scores of hidden keys to -inf; the rest of the block is hidden as well.
static void mask_scores(const Head& head, Rows& rows, long first_key, long num_keys) {
  NOT_WRITTEN_YET("week 2 day 5 task 1: mask_scores is not written yet");
}

/// Turn scores into weights, and rescale the sums and outputs so far to the new maximum.
static void update_softmax(const Head& head, Rows& rows) {
  NOT_WRITTEN_YET("week 2 day 5 task 1: update_softmax is not written yet");
}

/// Let the rows attend to keys `first_key` to `last_key` - 1, block by block.
static void attend_to_part(const Head& head, Rows& rows, long first_key, long last_key) {
  std::vector<float> turned;
  for (long block = first_key; block < last_key; block += KEY_BLOCK) {
    const long num_keys = std::min(KEY_BLOCK, last_key - block);
    find_block(head, rows, block, num_keys);
    if (block == first_key && rows.count <= MAX_DECODE_ROWS)
      for (long j = 0; j < KEYS_AHEAD; j++) ask_for(head, rows.keys[j]);
    if (rows.count > MAX_DECODE_ROWS) {
      score_many(head, rows, num_keys, turned);
    } else {
      score_few(head, rows, num_keys);
    }
    mask_scores(head, rows, block, num_keys);
    update_softmax(head, rows);
    multiply_add(rows.scores.data(), KEY_BLOCK, rows.values.data(), rows.outputs.data(), head.D, rows.count, num_keys,
                 head.D);
  }
}

/// Merge the result for `part`'s keys into `rows`, each weighted by its own maximum.
static void merge(const Head& head, Rows& rows, const Rows& part) {
  NOT_WRITTEN_YET("week 2 day 5 task 1: merge is not written yet");
}

/// Do the same in parts of KEYS_PER_TASK that are merged, so that one task sums exactly as several tasks would.
static void attend(const Head& head, Rows& rows, long first_key, long last_key) {
  attend_to_part(head, rows, first_key, std::min(last_key, first_key + KEYS_PER_TASK));
  for (long key = first_key + KEYS_PER_TASK; key < last_key; key += KEYS_PER_TASK) {
    Rows part(head, rows.first_position, rows.num_positions);
    attend_to_part(head, part, key, std::min(last_key, key + KEYS_PER_TASK));
    merge(head, rows, part);
  }
}

/// Write the queries' outputs [L, H_q, D] from the weighted sums.
static void finish(const Head& head, const Rows& rows, float* output, long output_stride) {
  NOT_WRITTEN_YET("week 2 day 5 task 1: finish is not written yet");
}

/// Attention in blocks, with online softmax: only the scores of one block are ever in memory.
///
/// inputs:  query float32 [B, H_q, L, D]; key and value float32 [B, H, S, D]; mask float32 [B, H_q, L, S] if
///          there is one. All are read by their strides. D is a multiple of 16, and its stride is 1.
/// outputs: float32 [B, L, H_q, D]
/// numbers: scale; whether the mask is causal; whether there is a fourth input
KERNEL flash_attention(const Array* inputs, const Array* outputs, const double* numbers) {
  const Array &query = inputs[0], &key = inputs[1], &value = inputs[2];
  const long B = query.length(0), H_q = query.length(1), L = query.length(2), D = query.length(3);
  const long H = key.length(1), S = key.length(2), group_size = H_q / H;
  const bool has_mask = numbers[2];

  auto head_at = [&](long index) {
    const long b = index / H, h = index % H;
    Head head{};
    head.query = query.data<float>() + b * query.stride(0) + h * group_size * query.stride(1);
    head.key = key.data<float>() + b * key.stride(0) + h * key.stride(1);
    head.value = value.data<float>() + b * value.stride(0) + h * value.stride(1);
    head.query_head_stride = query.stride(1), head.query_stride = query.stride(2);
    head.key_stride = key.stride(2), head.value_stride = value.stride(2);
    if (has_mask) {
      const Array& mask = inputs[3];
      head.mask = mask.data<float>() + b * mask.stride(0) + h * group_size * mask.stride(1);
      head.mask_head_stride = mask.stride(1), head.mask_query_stride = mask.stride(2);
      head.mask_key_stride = mask.stride(3);
    }
    head.L = L, head.S = S, head.D = head.asked = D, head.group_size = group_size;
    head.scale = numbers[0], head.is_causal = numbers[1];
    return head;
  };
  auto output_at = [&](long index) {
    return outputs[0].data<float>() + index / H * L * H_q * D + index % H * group_size * D;
  };

  if (L * group_size <= MAX_DECODE_ROWS) {
    const long num_parts = (S + KEYS_PER_TASK - 1) / KEYS_PER_TASK;
    std::vector<std::vector<std::unique_ptr<Rows>>> parts(B * H);
    for (auto& of_head : parts) of_head.resize(num_parts);
    parallel_for(B * H * num_parts, 1 + KEYS_PER_TASK / S, [&](long first, long last) {
      for (long task = first; task < last; task++) {
        const long i = task / num_parts, part = task % num_parts;
        const Head head = head_at(i);
        parts[i][part] = std::make_unique<Rows>(head, 0, L);
        attend(head, *parts[i][part], part * KEYS_PER_TASK, std::min(S, (part + 1) * KEYS_PER_TASK));
      }
    });
    for (long i = 0; i < B * H; i++) {
      for (long part = 1; part < num_parts; part++) merge(head_at(i), *parts[i][0], *parts[i][part]);
      finish(head_at(i), *parts[i][0], output_at(i), H_q * D);
    }
    return;
  }
  const long num_blocks = (L + QUERY_BLOCK - 1) / QUERY_BLOCK;
  parallel_for(B * H * num_blocks, 1, [&](long task, long) {
    const long i = task / num_blocks, first = task % num_blocks * QUERY_BLOCK;
    const Head head = head_at(i);
    Rows rows(head, first, std::min(QUERY_BLOCK, L - first));
    const long last_key = head.is_causal ? first + rows.num_positions + S - L : S;
    attend(head, rows, 0, last_key);
    finish(head, rows, output_at(i), H_q * D);
  });
}
