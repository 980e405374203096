// What the kernels of day 2.3 share with all later ones. A block has 8 warps. A tile has 32 rows of 32 floats in
// shared memory; entry (row, column) is at row * TILE_STRIDE + column.

#define MINUS_INFINITY __int_as_float(0xff800000)

constexpr int WARPS = 8;  // per block
constexpr int TILE = 32;  // rows and columns of a tile
// One more than a row has entries, so a column's entries lie in different banks.
constexpr int TILE_STRIDE = TILE + 1;

/// Extract the code of `bits` bits that begins at bit `first_bit` of a word.
__device__ unsigned code_at(unsigned word, int first_bit, int bits) {
  return (word >> first_bit) & ((1u << bits) - 1);
}

/// Load a part of a matrix into a tile, with zeros where the matrix ends.
///
/// x points to the first entry of the part, and its rows are `stride` entries apart. From there on, the matrix
/// has num_rows rows and num_columns columns, fewer or more than a tile.
/// All threads of the block take part: thread i loads entries i, i + 256, i + 512 ...
template <typename T>
__device__ void load_tile(float* tile, const T* x, int stride, int num_rows, int num_columns) {
  for (int i = threadIdx.x; i < TILE * TILE; i += WARPS * 32) {
    int row = i / TILE, column = i % TILE;
    bool is_inside = row < num_rows && column < num_columns;
    tile[row * TILE_STRIDE + column] = is_inside ? float(x[row * stride + column]) : 0.0f;
  }
}

/// Sum a value over the lanes of a warp. Every lane gets the result.
__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
  return value;
}
