#include <memory>

#include "flash_attention.cpp"

/// Some queries of a sequence, and the keys that they attend to; `is_part` if others attend to the rest.
struct Piece {
  long sequence, key_head, first_query, num_queries, first_key, last_key;
  bool is_part;
};

/// What one task computes. A sequence of few queries is cut along its keys, the others along their queries.
static std::vector<Piece> cut(const int32_t* query_starts, const int32_t* context_lengths, long num_sequences,
                              long num_key_heads, long group_size) {
  std::vector<Piece> pieces;
  for (long i = 0; i < num_sequences; i++) {
    const long L = query_starts[i + 1] - query_starts[i], S = context_lengths[i];
    for (long h = 0; h < num_key_heads; h++) {
      if (L * group_size <= MAX_DECODE_ROWS) {
        for (long key = 0; key < S; key += KEYS_PER_TASK)
          pieces.push_back({i, h, 0, L, key, std::min(S, key + KEYS_PER_TASK), S > KEYS_PER_TASK});
      } else {
        for (long query = 0; query < L; query += QUERY_BLOCK) {
          const long num_queries = std::min(QUERY_BLOCK, L - query);
          pieces.push_back({i, h, query, num_queries, 0, S - L + query + num_queries, false});
        }
      }
    }
  }
  return pieces;
}

/// Causal attention of a ragged batch to keys and values in blocks, read where they lie.
///
/// inputs:  query float32 [T, H_q, D]; keys and values float32 [num_blocks, block_size, H, D];
///          block_tables int32 [N, longest]; query_starts int32 [N + 1]; context_lengths int32 [N].
///          D is a multiple of 16.
/// outputs: float32 [T, H_q, D]
/// numbers: scale
KERNEL paged_attention(const Array* inputs, const Array* outputs, const double* numbers) {
  const Array &query = inputs[0], &keys = inputs[1], &values = inputs[2], &tables = inputs[3];
  const int32_t *query_starts = inputs[4].data<int32_t>(), *context_lengths = inputs[5].data<int32_t>();
  const long H_q = query.length(1), D = query.length(2), H = keys.length(2), group_size = H_q / H;

  auto head_of = [&](const Piece& piece) {
    Head head{};
    head.query = query.data<float>() + (query_starts[piece.sequence] * H_q + piece.key_head * group_size) * D;
    head.key = keys.data<float>() + piece.key_head * D;
    head.value = values.data<float>() + piece.key_head * D;
    head.query_head_stride = D, head.query_stride = H_q * D;
    head.key_stride = head.value_stride = H * D;
    head.L = query_starts[piece.sequence + 1] - query_starts[piece.sequence];
    head.S = context_lengths[piece.sequence], head.D = D, head.group_size = group_size;
    head.scale = numbers[0], head.is_causal = true;
    head.block_table = tables.data<int32_t>() + piece.sequence * tables.length(1);
    head.block_size = keys.length(1);
    return head;
  };
  auto write = [&](const Piece& piece, const Rows& rows) {
    const long first = query_starts[piece.sequence] * H_q + piece.key_head * group_size;
    finish(head_of(piece), rows, outputs[0].data<float>() + first * D, H_q * D);
  };

  const std::vector<Piece> pieces = cut(query_starts, context_lengths, inputs[5].length(0), H, group_size);
  std::vector<std::unique_ptr<Rows>> parts(pieces.size());
  parallel_for(pieces.size(), 1, [&](long i, long) {
    const Piece& piece = pieces[i];
    auto rows = std::make_unique<Rows>(head_of(piece), piece.first_query, piece.num_queries);
    attend(head_of(piece), *rows, piece.first_key, piece.last_key);
    if (piece.is_part)
      parts[i] = std::move(rows);
    else
      write(piece, *rows);
  });
  for (size_t i = 0, whole = 0; i < pieces.size(); i++) {
    if (!pieces[i].is_part) continue;
    if (pieces[i].first_key == 0)
      whole = i;
    else
      merge(head_of(pieces[i]), *parts[whole], *parts[i]);
    if (pieces[i].last_key == context_lengths[pieces[i].sequence]) write(pieces[i], *parts[whole]);
  }
}
