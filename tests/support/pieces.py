"""What the function `cut` of paged_attention.cpp gives, and what it should."""

from functools import cache
from itertools import groupby
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import mlx.core as mx

from kernel_runtime.cpu_kernel import CpuKernel, load_kernels
from tests.support.check import check_equal
from tests.support.ragged import Ragged
from tiny_llm.kernels.dispatch_paged_attention import PAGED_ATTENTION

MAX_DECODE_ROWS, QUERY_BLOCK, KEYS_PER_TASK = 8, 32, 256
"""Those of flash_attention.cpp."""

Piece = tuple[int, int, int, int, bool, bool]
"""first_query, num_queries, first_key, last_key, is_first, is_last"""

INCLUDE = '#include "flash_attention.cpp"'
PIECES = """
KERNEL pieces(const Array* inputs, const Array* outputs, const double* numbers) {
  int32_t* out = outputs[0].data<int32_t>();
  const int32_t *query_start_loc = inputs[0].data<int32_t>(), *seq_lens = inputs[1].data<int32_t>();
  const long num_sequences = inputs[1].length(0);
  const std::vector<Piece> pieces = cut(query_start_loc, seq_lens, num_sequences, numbers[0], numbers[1]);
  std::fill(out, out + outputs[0].size(), 0);
  out[0] = pieces.size();
  for (long i = 0; i < std::min<long>(pieces.size(), outputs[0].length(0) - 1); i++) {
    const Piece& piece = pieces[i];
    const long entries[] = {piece.sequence, piece.key_head, piece.first_query, piece.num_queries,
                            piece.first_key, piece.last_key, piece.is_first, piece.is_last};
    std::copy(entries, entries + 8, out + 8 * (i + 1));
  }
}
"""


@cache
def pieces_kernel() -> CpuKernel:
    """`cut` as an operation: the two files in one, and a function that writes down its pieces."""
    load_kernels(
        PAGED_ATTENTION.file
    )  # what is not written or cannot be compiled shows by the file's own name
    own, included = (
        (PAGED_ATTENTION.file.parent / name).read_text(encoding="utf-8")
        for name in ("paged_attention.cpp", "flash_attention.cpp")
    )
    assert own.count(INCLUDE) == 1, f"paged_attention.cpp has no line {INCLUDE}"
    file = Path(mkdtemp(prefix="tiny-llm-")) / "pieces.cpp"
    file.write_text(own.replace(INCLUDE, included) + PIECES, encoding="utf-8")
    kernel = CpuKernel(file)
    load_kernels(file)
    rmtree(file.parent)
    return kernel


def cut_keys(L: int, S: int) -> list[Piece]:
    """The pieces of one key head of a sequence with L queries and a context of S, for few queries."""
    starts = range(0, S, KEYS_PER_TASK)
    ends = [*starts[1:], S]
    return [(0, L, start, end, start == 0, end == S) for start, end in zip(starts, ends, strict=True)]


def cut_queries(L: int, S: int) -> list[Piece]:
    """The same for many queries."""
    starts = range(0, L, QUERY_BLOCK)
    ends = [*starts[1:], L]
    return [(start, end - start, 0, S - L + end, True, True) for start, end in zip(starts, ends, strict=True)]


def check_pieces(ragged: Ragged) -> None:
    """Each key head of each sequence is cut as its number of queries says, its pieces side by side."""
    __tracebackhide__ = True
    shape = ragged.shape
    group_size = shape.H_q // shape.H
    expected = {
        (i, h): (cut_keys if L * group_size <= MAX_DECODE_ROWS else cut_queries)(L, S)
        for i, (L, S) in enumerate(zip(shape.num_queries, shape.contexts, strict=True))
        for h in range(shape.H)
    }
    (written,) = pieces_kernel()(
        [ragged.layout.query_start_loc, ragged.layout.seq_lens],
        [(sum(map(len, expected.values())) + 100, 8)],
        [mx.int32],
        [shape.H, group_size],
    )
    rows: list[list[int]] = written.tolist()  # type: ignore[assignment]
    runs = [
        (owner, list(run)) for owner, run in groupby(rows[1 : rows[0][0] + 1], lambda row: (row[0], row[1]))
    ]
    owners = sorted(owner for owner, _ in runs)
    check_equal(owners, sorted(expected), f"(sequence, key head) of each run of pieces, {shape}")
    for (i, h), run in runs:
        found = [(*row[2:6], bool(row[6]), bool(row[7])) for row in run]
        L, S = shape.num_queries[i], shape.contexts[i]
        mistakes = {
            "cut along the queries, though there are few": cut_queries(L, S),
            "cut along the keys, though there are many queries": cut_keys(L, S),
        }
        check_equal(
            found,
            expected[i, h],
            "pieces (first_query, num_queries, first_key, last_key, is_first, is_last) where "
            f"L is {L}, S is {S} and group_size {group_size}",
            mistakes,
        )
