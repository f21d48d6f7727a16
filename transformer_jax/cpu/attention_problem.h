// The problem that the kernel solves: sizes and mask, the keys of a head, and blocks of queries.
#ifndef TRANSFORMER_JAX_ATTENTION_PROBLEM_H_
#define TRANSFORMER_JAX_ATTENTION_PROBLEM_H_

#include <algorithm>
#include <cstdint>

#include "vectors.h"

namespace {

constexpr long QUERIES = 64, KEYS = 128;  // of a tile

// The sizes, by the letters of the library, and the mask: the query at t sees the keys from
// t + S - T - left to t + S - T + right. A negative number is no bound.
struct Problem {
  long B, T, N, H, S, K, O, left, right;
  float scale;
  const uint8_t* is_token;  // [tokens, S], or null
  long tokens;              // 1 or B
  // A query sees the keys with its id.
  const int32_t *query_ids = nullptr, *key_ids = nullptr;  // [ids, T] and [ids, S], or null
  long ids = 1;                                            // 1 or B
  bool heads_first = false;  // whether the keys and values of a head follow each other in memory
  const uint8_t* kept = nullptr;  // the bits of dropout [B, N, groups, LANES, kept_rows], or null
  long kept_rows = 0;             // T, rounded up to a multiple of QUERIES
  float kept_scale = 1;           // the factor of a weight that is kept

  // The number of rows of keys, of all heads, before the first of a head, and between two of them.
  long first_key(long b, long head) const {
    return heads_first ? (b * K + head) * S : b * S * K + head;
  }
  long key_step() const { return heads_first ? 1 : K; }
};

// Which weights of one head dropout keeps: bit j of byte (g, l, t) is for the query t and the key
// (BITS g + j) LANES + l.
struct Kept {
  static constexpr long BITS = 8, LANES = 64;
  const uint8_t* bytes;  // or null if all are
  long rows;

  Kept(const Problem& p, long b, long n)
      : bytes(p.kept ? p.kept + (b * p.N + n) * groups(p) * LANES * p.kept_rows : nullptr),
        rows(p.kept_rows) {}

  static long groups(const Problem& p) { return (p.S + BITS * LANES - 1) / (BITS * LANES); }

  // Returns x, of W queries from one on, with 0 for weights that are dropped.
  Floats apply(long key, long query, Floats x) const {
    const long row = key / (BITS * LANES) * LANES + key % LANES;
    const Bytes found = *reinterpret_cast<const Bytes*>(bytes + row * rows + query);
    const Ints bit = __builtin_convertvector(found, Ints) & (1 << key / LANES % BITS);
    return bit != 0 ? x : Floats{};
  }
};

// The keys of an example that padding leaves.
struct Seen {
  int32_t *position, *ids;   // of each; the ids only if there are segments
  long number;
  const int32_t* query_ids;  // of the example, or null

  static size_t memory(const Problem& p) { return 2 * p.S; }
};

Seen seen_keys(const Problem& p, long b, int32_t* memory) {
  const long row = p.ids > 1 ? b : 0;
  Seen seen{memory, memory + p.S, 0, p.query_ids ? p.query_ids + row * p.T : nullptr};
  const uint8_t* is_token = p.is_token ? p.is_token + (p.tokens > 1 ? b : 0) * p.S : nullptr;
  for (long s = 0; s < p.S; s++) {
    if (is_token && !is_token[s]) continue;
    if (p.query_ids) seen.ids[seen.number] = p.key_ids[row * p.S + s];
    seen.position[seen.number++] = s;
  }
  return seen;
}

// The keys and values of one head that padding leaves, copied to contiguous rows.
struct Keys : Seen {
  float *key, *value;
};

template <class E>
Keys copied(const Problem& p, const E* key, const E* value, long b, float* memory) {
  float* values = memory + p.S * p.H;
  Keys keys{seen_keys(p, b, reinterpret_cast<int32_t*>(values + p.S * p.O)), memory, values};
  for (long j = 0; j < keys.number; j++) {
    const long row = keys.position[j] * p.key_step();
    copy(key + row * p.H, p.H, keys.key + j * p.H);
    copy(value + row * p.O, p.O, keys.value + j * p.O);
  }
  return keys;
}

// A block of queries, and the keys that it may see: the indices first <= j < last.
struct Block {
  long start, rows, columns, position, first, last;
  // Of the queries, if there are segments.
  int32_t ids[QUERIES], least_id, most_id;

  bool has(int32_t id) const {
    return id >= least_id && id <= most_id && std::find(ids, ids + rows, id) != ids + rows;
  }
};

Block block_at(const Problem& p, const Seen& keys, long start) {
  Block block{};
  block.start = start;
  block.rows = std::min(QUERIES, p.T - start);
  block.position = start + p.S - p.T;
  block.last = keys.number;
  block.columns = rounded_up(block.rows);
  const int32_t *begin = keys.position, *end = begin + keys.number;
  if (p.left >= 0)
    block.first = std::lower_bound(begin, end, block.position - p.left) - keys.position;
  if (p.right >= 0)
    block.last = std::upper_bound(begin, end, block.position + block.rows - 1 + p.right) -
                 keys.position;
  block.last = std::max(block.first, block.last);
  if (!keys.query_ids) return block;
  std::copy_n(keys.query_ids + start, block.rows, block.ids);
  const auto [least, most] = std::minmax_element(block.ids, block.ids + block.rows);
  block.least_id = *least;
  block.most_id = *most;
  while (block.first < block.last && !block.has(keys.ids[block.first])) block.first++;
  while (block.first < block.last && !block.has(keys.ids[block.last - 1])) block.last--;
  return block;
}

// Sets the logits [key][query] of keys that a query does not see to -inf.
void hide(const Problem& p, const Block& block, const Seen& keys, long j, long n, float* logits) {
  const int32_t *position = keys.position + j, at = block.position;
  const bool left = p.left >= 0 && position[0] < at + block.rows - 1 - p.left;
  const bool right = p.right >= 0 && position[n - 1] > at + p.right;
  const auto differs = [&](int32_t id) { return id != block.least_id; };
  const bool segments = keys.query_ids && (block.least_id != block.most_id ||
                                           std::any_of(keys.ids + j, keys.ids + j + n, differs));
  if (!left && !right && !segments) return;
  Ints lane;
  for (int i = 0; i < W; i++) lane[i] = at + i;
  const Ints far = Ints{} + (1 << 30);
  for (long k = 0; k < n; k++)
    for (long i = 0; i < block.columns; i += W) {
      const Ints query = lane + (int32_t)i, key = Ints{} + position[k];
      const Ints first = left ? query - (int32_t)p.left : -far;
      const Ints last = right ? query + (int32_t)p.right : far;
      const Ints id = segments ? load(block.ids + i) : Ints{};
      const Ints id_of_key = Ints{} + (segments ? keys.ids[j + k] : 0);
      float* x = logits + k * QUERIES + i;
      store(x, ((key >= first) & (key <= last) & (id == id_of_key)) ? load(x) : same(-INF));
    }
}

// Writes columns [width][QUERIES] as rows [rows][width] that are `stride` apart, W rows at a time.
// Rows a power of two apart fall into few sets of the cache, and all would push each other out.
template <class E>
void write_rows(const float* columns, long width, long rows, E* to, long stride) {
  for (long i = 0; i < rows; i += W)
    transpose(columns + i, width, std::min<long>(W, rows - i), QUERIES, 1, to + i * stride, stride);
}

struct Statistics {
  float *highest, *log_total;  // of one head, [T]
};

// What the forward pass found for one head, and the cotangents. The rows of the output and of its
// cotangent are p.N p.O apart.
template <class E>
struct Outputs {
  const E *output, *d_output;
  Statistics statistics;
  const float* d_logsumexp;  // [T], or null if it is 0
};

// Reads the statistics of query i of a block, and computes delta = sum(dO O) - d logsumexp, divided
// by the factor of dropout. Returns whether it has a gradient: not if it sees no key, or is beyond
// the last. The highest logit is -inf also where all logits are NaN, since a maximum ignores NaN;
// the total is 0 only without a key.
template <class E>
bool read_statistics(const Problem& p, const Block& block, const Outputs<E>& found, long i,
                     float* highest, float* log_total, float* delta) {
  const long at = block.start + i, row = at * p.N * p.O;
  const bool sees = i < block.rows && found.statistics.log_total[at] != -INF;
  highest[i] = log_total[i] = delta[i] = 0;
  if (!sees) return false;
  highest[i] = found.statistics.highest[at];
  log_total[i] = found.statistics.log_total[at];
  delta[i] = dot(found.output + row, found.d_output + row, p.O);
  if (found.d_logsumexp) delta[i] -= found.d_logsumexp[at];
  delta[i] /= p.kept_scale;
  return true;
}

}  // namespace

#endif  // TRANSFORMER_JAX_ATTENTION_PROBLEM_H_
