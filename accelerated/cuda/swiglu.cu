/// silu(gate) * up, an entry for each thread.
///
/// out: [rows, size]; entry i of row r is made of gate[r * distance + i] and up[r * distance + start + i]: of
/// two arrays, or of both halves of one. blockIdx.x counts blocks of 256 entries.
template <typename T>
__device__ void swiglu(const T* gate, const T* up, T* out, int size, int distance, int start, int count) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= count) return;
  int place = i / size * distance + i % size;
  float x = float(gate[place]);
  out[i] = T(x / (1.0f + expf(-x)) * float(up[place + start]));
}
