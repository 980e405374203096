/// The sum of the values of all lanes of a warp, in each of them.
__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
  return value;
}

/// Queries, keys and values out of one product: normalized where the model has norms, and rotated.
///
/// product: [B, L, (H_q + 2 H) D], queries first, then keys, then values; cos, sin: [number of positions,
/// D / 2]; query_weight, key_weight: [D], of the norms; first: [B], position of each row's first token.
/// out: queries [B, H_q, L, D], keys [B, H, L, D] and values [B, H, L, D], one behind the other.
/// One warp computes one head of a token, and its lanes share out the pairs that are turned together: lane 0
/// takes 0, 32, 64 ... blockIdx.x counts heads, those of the product, blockIdx.y tokens.
template <typename T>
__device__ void split_heads(
    const T* product,
    const float* cos,
    const float* sin,
    const float* query_weight,
    const float* key_weight,
    const int* first,
    T* out,
    int B,
    int L,
    int H_q,
    int H,
    int D,
    int has_norms,
    int are_neighbours,
    float eps) {
  int head = blockIdx.x, batch = blockIdx.y / L, token = blockIdx.y % L, lane = threadIdx.x;
  int part = head < H_q ? 0 : head < H_q + H ? 1 : 2;  // queries, keys, values
  int num_heads = part == 0 ? H_q : H, half_size = D / 2;
  product += ((batch * L + token) * (H_q + 2 * H) + head) * D;
  out += part == 0 ? 0 : B * L * D * (part == 1 ? H_q : H_q + H);
  head -= part == 0 ? 0 : part == 1 ? H_q : H_q + H;
  out += ((batch * num_heads + head) * L + token) * D;
  cos += (first[batch] + token) * half_size;
  sin += (first[batch] + token) * half_size;
  const float* weight = part == 0 ? query_weight : key_weight;
  bool is_normalized = part < 2 && has_norms, is_turned = part < 2;
  int step = are_neighbours ? 2 : 1, distance = are_neighbours ? 1 : half_size;  // of pairs, and in a pair

  float factor = 1.0f;
  if (is_normalized) {
    float squares = 0.0f;
    for (int i = lane; i < D; i += 32) squares += float(product[i]) * float(product[i]);
    factor = 1.0f / sqrtf(warp_sum(squares) / float(D) + eps);
  }
  for (int pair = lane; pair < half_size; pair += 32) {
    int i = pair * step, j = i + distance;
    float a = float(product[i]) * factor * (is_normalized ? weight[i] : 1.0f);
    float b = float(product[j]) * factor * (is_normalized ? weight[j] : 1.0f);
    out[i] = T(is_turned ? a * cos[pair] - b * sin[pair] : a);
    out[j] = T(is_turned ? b * cos[pair] + a * sin[pair] : b);
  }
}
