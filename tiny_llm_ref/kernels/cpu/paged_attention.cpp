#include <map>

#include "flash_attention.cpp"

/// Some queries of a sequence for one key head, and the keys that they attend to, from first_key to before
/// last_key; the first and the last such piece if the keys are cut, and both if they are not.
struct Piece {
  long sequence, key_head, first_query, num_queries, first_key, last_key;
  bool is_first, is_last;
};

/// What one task computes. Sequences of few queries are cut along the keys, the others along the queries.
static std::vector<Piece> cut(const int32_t* query_start_loc, const int32_t* seq_lens, long num_sequences,
                              long num_key_heads, long group_size) {
  std::vector<Piece> pieces;
  for (long i = 0; i < num_sequences; i++) {
    const long L = query_start_loc[i + 1] - query_start_loc[i], S = seq_lens[i];
    for (long h = 0; h < num_key_heads; h++) {
      if (L * group_size <= MAX_DECODE_ROWS) {
        for (long key = 0; key < S; key += KEYS_PER_TASK) {
          const long last_key = std::min(S, key + KEYS_PER_TASK);
          pieces.push_back({i, h, 0, L, key, last_key, key == 0, last_key == S});
        }
      } else {
        for (long query = 0; query < L; query += QUERY_BLOCK) {
          const long num_queries = std::min(QUERY_BLOCK, L - query);
          pieces.push_back({i, h, query, num_queries, 0, S - L + query + num_queries, true, true});
        }
      }
    }
  }
  return pieces;
}

constexpr long LONG_CONTEXT = 1024;  // from so many keys on, a task takes all key heads of the same keys

/// The pieces of each task. The key heads of a token lie side by side in memory, so in a long context that is cut along
/// the keys they belong together.
static std::vector<std::vector<long>> tasks_of(const std::vector<Piece>& pieces, const int32_t* seq_lens) {
  std::vector<std::vector<long>> tasks;
  std::map<std::pair<long, long>, size_t> task_of;  // by sequence and first key
  for (size_t i = 0; i < pieces.size(); i++) {
    const Piece& piece = pieces[i];
    const bool is_cut = !(piece.is_first && piece.is_last);
    size_t task = tasks.size();
    if (is_cut && seq_lens[piece.sequence] >= LONG_CONTEXT)
      task = task_of.try_emplace({piece.sequence, piece.first_key}, task).first->second;
    if (task == tasks.size()) tasks.emplace_back();
    tasks[task].push_back(i);
  }
  return tasks;
}

/// A piece's sequence and key head as flash_attention.cpp knows it; the inputs are those of the kernel.
static Head head_of(const Piece& piece, const Array* inputs, float scale) {
  const Array &query = inputs[0], &keys = inputs[1], &values = inputs[2], &tables = inputs[3];
  const int32_t *starts = inputs[4].data<int32_t>() + piece.sequence, *contexts = inputs[5].data<int32_t>();
  const long H_q = query.length(1), D = query.length(2), H = keys.length(2);
  Head head{};
  head.D = D, head.group_size = H_q / H;
  head.L = starts[1] - starts[0], head.S = contexts[piece.sequence];
  head.scale = scale, head.is_causal = true;
  head.query = query.data<float>() + (starts[0] * H_q + piece.key_head * head.group_size) * D;
  head.query_head_stride = D, head.query_stride = H_q * D;
  head.key = keys.data<float>() + piece.key_head * D;
  head.value = values.data<float>() + piece.key_head * D;
  head.key_stride = head.value_stride = H * D;
  head.block_table = tables.data<int32_t>() + piece.sequence * tables.length(1);
  head.block_size = keys.length(1);
  head.asked = D;
  if (head.S >= LONG_CONTEXT) head.asked = piece.key_head ? 0 : H * D;  // the first asks for all
  return head;
}

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static float widen_bfloat16(uint16_t bits) { return from_bits(static_cast<uint32_t>(bits) << 16); }

static float widen_float16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, rest = (bits & 0x7FFFu) << 13;
  if (rest >= 0x0F800000) return from_bits(sign | rest | 0x7F800000);  // infinity, or nan
  return from_bits(sign | rest) * 0x1p112f;                            // exponents count from another place
}

/// A piece's head whose keys and values are of the type of that number.
static Head head_of_type(const Piece& piece, const Array* inputs, float scale, int type) {
  Head head = head_of(piece, inputs, scale);
  if (type == 0) return head;
  head.widen = type == 1 ? widen_bfloat16 : widen_float16;
  head.short_key = inputs[1].data<uint16_t>() + (head.key - inputs[1].data<float>());
  head.short_value = inputs[2].data<uint16_t>() + (head.value - inputs[2].data<float>());
  return head;
}

/// Causal attention of a ragged batch to keys and values in blocks, read where they lie.
///
/// inputs:  query float32 [T, H_q, D]; keys and values [num_blocks, block_size, H, D], of one type;
///          block_tables int32 [N, longest]; query_start_loc int32 [N + 1]; seq_lens int32 [N].
///          D is a multiple of 16.
/// outputs: float32 [T, H_q, D]
/// numbers: scale; the type of keys and values: 0 for float32, 1 for bfloat16, 2 for float16
KERNEL paged_attention(const Array* inputs, const Array* outputs, const double* numbers) {
  const long H_q = inputs[0].length(1), D = inputs[0].length(2), H = inputs[1].length(2), N = inputs[5].length(0);
  const int32_t* query_start_loc = inputs[4].data<int32_t>();
  auto write = [&](const Piece& piece, const Head& head, const Rows& rows) {
    const long first = query_start_loc[piece.sequence] * H_q + piece.key_head * head.group_size;
    finish(head, rows, outputs[0].data<float>() + first * D, H_q * D);
  };

  const std::vector<Piece> pieces = cut(query_start_loc, inputs[5].data<int32_t>(), N, H, H_q / H);
  std::vector<std::unique_ptr<Rows>> parts(pieces.size());
  auto compute = [&](long i) {
    const Head head = head_of_type(pieces[i], inputs, numbers[0], numbers[1]);
    auto rows = std::make_unique<Rows>(head, pieces[i].first_query, pieces[i].num_queries);
    attend(head, *rows, pieces[i].first_key, pieces[i].last_key);
    if (pieces[i].is_first && pieces[i].is_last) {
      write(pieces[i], head, *rows);
    } else {
      parts[i] = std::move(rows);
    }
  };
  const std::vector<std::vector<long>> tasks = tasks_of(pieces, inputs[5].data<int32_t>());
  parallel_for(tasks.size(), 1, [&](long task, long) {
    for (long i : tasks[task]) compute(i);
  });
  for (size_t i = 0, whole = 0; i < pieces.size(); i++) {
    if (!parts[i]) continue;
    const Head head = head_of_type(pieces[i], inputs, numbers[0], numbers[1]);
    if (pieces[i].is_first) {
      whole = i;
    } else {
      merge(head, *parts[whole], *parts[i]);
    }
    if (pieces[i].is_last) write(pieces[i], head, *parts[whole]);
  }
}
