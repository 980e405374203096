// What the kernels of day 2.3 share with all later ones. A threadgroup has 8 SIMD groups. A tile has 32 rows of
// 32 floats in threadgroup memory; entry (row, column) is at row * TILE_STRIDE + column.

#include <metal_stdlib>
using namespace metal;

constexpr constant int SIMD_GROUPS = 8;  // per threadgroup
constexpr constant int TILE = 32;        // rows and columns of a tile
// One more than a row has entries, so a column's entries lie in different banks.
constexpr constant int TILE_STRIDE = TILE + 1;

/// Extract the code of `bits` bits that begins at bit `first_bit` of a word.
uint code_at(uint word, int first_bit, int bits) {
  return (word >> first_bit) & ((1u << bits) - 1);
}

/// Load a part of a matrix into a tile, with zeros where the matrix ends.
///
/// x points to the first entry of the part, and its rows are `stride` entries apart. From there on, the matrix
/// has num_rows rows and num_columns columns, fewer or more than a tile.
/// All threads of the threadgroup take part: thread i loads entries i, i + 256, i + 512 ...
template <typename T>
void load_tile(
    threadgroup float* tile, const device T* x, int stride, int num_rows, int num_columns, int thread_number) {
  for (int i = thread_number; i < TILE * TILE; i += SIMD_GROUPS * 32) {
    int row = i / TILE, column = i % TILE;
    bool is_inside = row < num_rows && column < num_columns;
    tile[row * TILE_STRIDE + column] = is_inside ? float(x[row * stride + column]) : 0.0f;
  }
}
