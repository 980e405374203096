#include "paged_attention.cpp"

/// Quantized keys or values in blocks, as quantize_heads packs them: a head's codes, then its scales and biases.
struct Packed {
  Packed(const Array& words, long D)
      : words(words.data<uint32_t>()), token_stride(words.length(2) * words.length(3)), head_stride(words.length(3)),
        group_size(D % 64 ? 32 : 64), bits((words.length(3) - D / group_size) * 32 / D) {}

  const uint32_t* words;
  long token_stride, head_stride, group_size, bits;
};

/// The codes of LANES neighbors, from entry `first` of a head on, which is a multiple of LANES.
static Ints codes_at(const uint32_t* words, long first, long bits) {
  NOT_WRITTEN_YET("week 4 day 1 task 5: codes_at is not written yet");
}

/// scale x code + bias for the D entries of one head of one token.
static void expand(const Packed& packed, long place, long key_head, long D, float* target) {
  NOT_WRITTEN_YET("week 4 day 1 task 5: expand is not written yet");
}

/// What a query sees of some keys: those from `first` to before `last`.
struct Visible {
  long first, last;
};

/// Let the rows attend to keys `first_key` to `last_key` - 1. `find` puts up to KEY_BLOCK keys and values where
/// `rows.keys` and `rows.values` point, and `visible` says what the query at some position sees.
template <typename Find, typename See>
static void attend_to(const Head& head, Rows& rows, long first_key, long last_key, Find find, See visible) {
  NOT_WRITTEN_YET("week 4 day 1 task 5: attend_to is not written yet");
}

/// One piece of the batch: its queries, and where its keys and values are.
struct QuantizedPiece {
  QuantizedPiece(const Piece& piece, const Array* inputs, float scale, int type)
      : piece(piece), inputs(inputs), type(type), keys(inputs[1], inputs[0].length(2)),
        values(inputs[2], inputs[0].length(2)), block_size(inputs[1].length(1)) {
    const Array &query = inputs[0], &tables = inputs[5];
    const int32_t* starts = inputs[7].data<int32_t>() + piece.sequence;
    const long H_q = query.length(1), D = query.length(2), H = inputs[1].length(2);
    first_row = starts[0];
    head.D = D, head.group_size = H_q / H;
    head.L = starts[1] - starts[0], head.S = inputs[8].data<int32_t>()[piece.sequence];
    head.scale = scale;
    head.query = query.data<float>() + (first_row * H_q + piece.key_head * head.group_size) * D;
    head.query_head_stride = D, head.query_stride = H_q * D;
    head.block_table = tables.data<int32_t>() + piece.sequence * tables.length(1);
    head.block_size = block_size;
  }

  /// Number of tokens that the query at some place of its sequence's queries sees, and of those in full blocks.
  long num_visible(long position) const { return head.S - head.L + position + 1; }
  long num_full(long position) const { return num_visible(position) / block_size * block_size; }

  /// Attend to quantized blocks, in parts of KEYS_PER_TASK that are merged, as `attend` does.
  void attend_to_full(Rows& rows) const {
    const long last_key = std::min(piece.last_key, num_full(piece.first_query + piece.num_queries - 1));
    attend_to_codes(rows, piece.first_key, std::min(last_key, piece.first_key + KEYS_PER_TASK));
    for (long key = piece.first_key + KEYS_PER_TASK; key < last_key; key += KEYS_PER_TASK) {
      Rows part(head, piece.first_query, piece.num_queries);
      attend_to_codes(part, key, std::min(last_key, key + KEYS_PER_TASK));
      merge(head, rows, part);
    }
  }

  /// Attend to the tails, block by block: what a query sees of another's is nothing.
  void attend_to_tails(Rows& rows) const {
    const long last = piece.first_query + piece.num_queries - 1;
    const long first_token = head.S - head.L + piece.first_query, last_token = head.S - head.L + last;
    for (long block = (first_token + 1) / block_size; block <= last_token / block_size; block++) {
      const long start = block * block_size, token = std::max(start, first_token);
      if (token == start + block_size - 1) continue;  // the first query that sees it fills it
      const long tail = inputs[6].data<int32_t>()[first_row + token - (head.S - head.L)];
      const long num_keys = std::min(block_size - 1, last_token + 1 - start);  // a token that fills it is seen as codes
      const Head own = tail_head(tail, num_keys);
      attend_to(own, rows, 0, num_keys, [&](long first, long count) { find_block(own, rows, first, count); },
                [&](long position) { return Visible{num_full(position) - start, num_visible(position) - start}; });
    }
  }

  Head head{};

 private:
  void attend_to_codes(Rows& rows, long first_key, long last_key) const {
    std::vector<float> expanded(2 * KEY_BLOCK * head.D);
    auto find = [&](long first, long num_keys) {
      for (long j = 0; j < num_keys; j++) {
        const long place = place_of(head, first + j);
        float *key = &expanded[j * head.D], *value = &expanded[(KEY_BLOCK + j) * head.D];
        expand(keys, place, piece.key_head, head.D, key);
        expand(values, place, piece.key_head, head.D, value);
        rows.keys[j] = key, rows.values[j] = value;
      }
      std::fill(rows.keys.begin() + num_keys, rows.keys.end(), expanded.data());
    };
    attend_to(head, rows, first_key, last_key, find, [&](long position) { return Visible{0, num_full(position)}; });
  }

  /// The head with keys and values in a block of floats, of the type of that number.
  Head tail_head(long tail, long num_keys) const {
    Head own = head;
    const long H = inputs[3].length(2), first = (tail * block_size * H + piece.key_head) * head.D;
    own.S = num_keys, own.block_table = nullptr;
    own.key_stride = own.value_stride = H * head.D;
    own.key = inputs[3].data<float>() + first, own.value = inputs[4].data<float>() + first;
    if (type == 0) return own;
    own.widen = type == 1 ? widen_bfloat16 : widen_float16;
    own.short_key = inputs[3].data<uint16_t>() + first, own.short_value = inputs[4].data<uint16_t>() + first;
    return own;
  }

  const Piece& piece;
  const Array* inputs;
  int type;
  Packed keys, values;
  long block_size, first_row;
};

/// Causal attention of a ragged batch to quantized blocks, read where they lie, and to tails of floats.
///
/// inputs:  query float32 [T, H_q, D]; keys and values uint32 [num_blocks, block_size, H, words per head];
///          tail keys and tail values [num_tails, block_size, H, D], of one type; block_tables int32 [N, longest];
///          tails int32 [T]; query_start_loc int32 [N + 1]; seq_lens int32 [N]. D is a multiple of 32.
/// outputs: float32 [T, H_q, D]
/// numbers: scale; the type of the tails: 0 for float32, 1 for bfloat16, 2 for float16
KERNEL quantized_paged_attention(const Array* inputs, const Array* outputs, const double* numbers) {
  const long H_q = inputs[0].length(1), D = inputs[0].length(2), H = inputs[1].length(2), N = inputs[8].length(0);
  const int32_t *query_start_loc = inputs[7].data<int32_t>(), *seq_lens = inputs[8].data<int32_t>();
  const std::vector<Piece> pieces = cut(query_start_loc, seq_lens, N, H, H_q / H);
  std::vector<std::unique_ptr<Rows>> parts(pieces.size()), tails(pieces.size());
  auto piece_at = [&](long i) { return QuantizedPiece(pieces[i], inputs, numbers[0], numbers[1]); };
  auto write = [&](const Piece& piece, const Head& head, Rows& rows, const Rows& tail) {
    merge(head, rows, tail);
    const long first = query_start_loc[piece.sequence] * H_q + piece.key_head * head.group_size;
    finish(head, rows, outputs[0].data<float>() + first * D, H_q * D);
  };
  auto compute = [&](long i) {
    const QuantizedPiece own = piece_at(i);
    auto make_rows = [&](long type_of_tails) {
      Head head = own.head;
      head.widen = type_of_tails ? widen_bfloat16 : nullptr;  // asks for memory to widen entries
      return std::make_unique<Rows>(head, pieces[i].first_query, pieces[i].num_queries);
    };
    parts[i] = make_rows(0);
    own.attend_to_full(*parts[i]);
    if (!pieces[i].is_last) return;
    tails[i] = make_rows(numbers[1]);
    own.attend_to_tails(*tails[i]);
    if (!pieces[i].is_first) return;
    write(pieces[i], own.head, *parts[i], *tails[i]);
    parts[i].reset();
  };
  const std::vector<std::vector<long>> tasks = tasks_of(pieces, seq_lens);
  parallel_for(tasks.size(), 1, [&](long task, long) {
    for (long i : tasks[task]) compute(i);
  });
  for (size_t i = 0, whole = 0; i < pieces.size(); i++) {
    if (!parts[i]) continue;
    const Head head = piece_at(i).head;
    if (pieces[i].is_first) {
      whole = i;
    } else {
      merge(head, *parts[whole], *parts[i]);
    }
    if (pieces[i].is_last) write(pieces[i], head, *parts[whole], *tails[i]);
  }
}
