#include <algorithm>
#include <cmath>
#include <vector>

#include "kernel.h"
#include "simd.h"

constexpr long BLOCK = 1024;           // tokens whose weights are added up together, a multiple of LANES
constexpr int NUM_BUCKETS = 1024;      // each holds the tokens that are about as likely
constexpr float BUCKETS_PER_NAT = 32;  // so the last one holds what is e^32 times less likely than the first
constexpr int NUMBERS_PER_ROW = 5;

// What the cuts leave of a row: the tokens above `logit`, and those equal to it up to `last_id`.
struct Edge {
  float logit;
  int32_t last_id;
};

// How a row is sampled.
struct Params {
  float temperature;
  double top_p, top_k;
  float log_min_p, uniform;
};

// LANES logits from number i on, -inf behind the end of the row.
static inline Floats load_logits(const float* row, long i, long V) {
  if (i + LANES <= V) return load(row + i);
  return count_lanes() < broadcast(static_cast<int32_t>(V - i)) ? load_first(row + i, V - i) : broadcast(-INFINITY);
}

static float maximum(const float* row, long V) {
  Floats largest = broadcast(-INFINITY);
  for (long i = 0; i < V; i += LANES) {
    const Floats logits = load_logits(row, i, V);
    largest = logits > largest ? logits : largest;
  }
  float result = largest[0];
  for (int lane = 1; lane < LANES; lane++) result = std::max(result, static_cast<float>(largest[lane]));
  return result;
}

static inline Ints buckets_of(Floats below_max) {
  const Floats bucket = below_max * BUCKETS_PER_NAT, last = broadcast(static_cast<float>(NUM_BUCKETS - 1));
  return to_ints(bucket < last ? bucket : last);
}

// Where top_k and top_p cut. Counts and probabilities are added up by buckets, from the likeliest on; the one
// in which the cut lies is sorted.
static Edge edge_by_rank(const float* row, long V, float max, const Params& params) {
  std::vector<double> counts(NUM_BUCKETS), masses(NUM_BUCKETS);
  for (long i = 0; i < V; i += LANES) {
    const Floats below_max = max - load_logits(row, i, V), weights = exponential(-below_max);
    const Ints buckets = buckets_of(below_max);
    for (int lane = 0; lane < std::min<long>(LANES, V - i); lane++) {
      counts[buckets[lane]]++;
      masses[buckets[lane]] += weights[lane];
    }
  }
  double total = 0, rank = 0, reached = 0;
  for (double mass : masses) total += mass;
  const double enough = params.top_p * total;
  int bucket = 0;
  for (; bucket < NUM_BUCKETS - 1; bucket++) {
    if (rank + counts[bucket] >= params.top_k || reached + masses[bucket] >= enough) break;
    rank += counts[bucket];
    reached += masses[bucket];
  }
  std::vector<Edge> tokens;
  for (long i = 0; i < V; i += LANES) {
    const Floats logits = load_logits(row, i, V);
    const Ints buckets = buckets_of(max - logits);
    for (int lane = 0; lane < std::min<long>(LANES, V - i); lane++) {
      if (buckets[lane] == bucket) tokens.push_back({logits[lane], static_cast<int32_t>(i + lane)});
    }
  }
  std::sort(tokens.begin(), tokens.end(), [](const Edge& a, const Edge& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.last_id < b.last_id);
  });
  Edge edge{-INFINITY, static_cast<int32_t>(V)};
  for (const Edge& token : tokens) {
    if (rank >= params.top_k || reached >= enough) break;
    edge = token;
    rank++;
    reached += std::exp(static_cast<double>(token.logit) - max);
  }
  return edge;
}

// The weights of LANES tokens from number i on, 0 for those that a cut drops.
static inline Floats weights_of(const float* row, long i, long V, float max, Edge edge, const Params& params) {
  const Floats logits = load_logits(row, i, V);
  const Ints ids = count_lanes() + static_cast<int32_t>(i);
  const Ints is_kept = (logits > edge.logit) | ((logits == edge.logit) & (ids <= edge.last_id));
  const Floats weights = exponential((logits - max) / params.temperature);
  return (is_kept & (logits >= max + params.log_min_p)) != 0 ? weights : Floats{};
}

// The token at the fraction `uniform` of all weights laid end to end.
static long draw(const float* row, long V, float max, const Params& params) {
  Edge edge{-INFINITY, static_cast<int32_t>(V)};
  if (params.top_k < V || params.top_p < 1) edge = edge_by_rank(row, V, max, params);
  std::vector<double> reached{0};  // up to each block
  for (long start = 0; start < V; start += BLOCK) {
    Floats sums{};
    for (long i = start; i < std::min(start + BLOCK, V); i += LANES) sums += weights_of(row, i, V, max, edge, params);
    reached.push_back(reached.back() + sum(sums));
  }
  const double target = params.uniform * reached.back();
  const long block = std::upper_bound(reached.begin(), reached.end(), target) - reached.begin() - 1;
  const long start = std::min<long>(block, reached.size() - 2) * BLOCK;
  double so_far = reached[start / BLOCK];
  long token = start;
  for (long i = start; i < std::min(start + BLOCK, V); i += LANES) {
    const Floats weights = weights_of(row, i, V, max, edge, params);
    for (int lane = 0; lane < LANES; lane++) {
      if (weights[lane] == 0) continue;
      token = i + lane;  // rounding may leave the target unreached: then it is the last one
      so_far += weights[lane];
      if (so_far > target) return token;
    }
  }
  return token;
}

/// A token for each row of logits; each row by its own numbers.
///
/// inputs:  logits float32 [B, V]
/// outputs: int32 [B]
/// numbers: for each row temperature, top_p, top_k, the logarithm of min_p, and a random number below 1
KERNEL sample_rows(const Array* inputs, const Array* outputs, const double* numbers) {
  const long B = inputs[0].length(0), V = inputs[0].length(1);

  parallel_for(B, 1, [&](long first, long last) {
    for (long b = first; b < last; b++) {
      const float* row = inputs[0].data<float>() + b * V;
      const double* each = numbers + b * NUMBERS_PER_ROW;
      const Params params{static_cast<float>(each[0]), each[1], each[2], static_cast<float>(each[3]),
                          static_cast<float>(each[4])};
      const float max = maximum(row, V);
      const long token = params.temperature > 0 ? draw(row, V, max, params) : std::find(row, row + V, max) - row;
      outputs[0].data<int32_t>()[b] = static_cast<int32_t>(std::min(token, V - 1));
    }
  });
}
