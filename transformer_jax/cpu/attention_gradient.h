// The gradients of queries, keys and values.
#ifndef TRANSFORMER_JAX_ATTENTION_GRADIENT_H_
#define TRANSFORMER_JAX_ATTENTION_GRADIENT_H_

#include <algorithm>
#include <type_traits>

#include "attention_problem.h"
#include "attention_tiles.h"
#include "threads.h"
#include "vectors.h"

namespace {

// Drops weights and their gradients.
inline void drop(Kept kept, long key, long query, Floats& weights, Floats& d_weights) {
  if (!kept.bytes) return;
  weights = kept.apply(key, query, weights);
  d_weights = kept.apply(key, query, d_weights);
}

// The gradients of one key head, by vectors. Each block of queries adds to those of the keys and
// values, and has those of its queries:
//     P = e^(S - m - log l)    dV = P^T dO    dS = P (dO V^T - delta)    dQ = dS K    dK = dS^T Q
// With dropout, P in dV and dO V^T are multiplied by 1 / (1 - rate) where a weight is kept, and by
// 0 elsewhere. The factor multiplies dV and dS in the end, and divides delta here.
template <class E>
class GradientsByVectors {
 public:
  static size_t memory(const Problem& p) {
    const long H = rounded_up(p.H), O = rounded_up(p.O);
    return QUERIES * (2 * p.H + p.O + 2 * KEYS + 3 + H + O) + p.S * (p.H + p.O + H + O) +
           Seen::memory(p);
  }

  GradientsByVectors(const Problem& p, const E* key, const E* value, long b, float* memory)
      : H(rounded_up(p.H)), O(rounded_up(p.O)), d_key(memory), d_value(d_key + p.S * H), p(p),
        keys(copied(p, key, value, b, d_value + p.S * O)),
        free(d_value + p.S * O + p.S * (p.H + p.O) + Seen::memory(p)) {
    std::fill(d_key, d_key + p.S * (H + O), 0.f);
  }

  const Seen& seen() const { return keys; }

  void add(Kept kept, const E* query, const Outputs<E>& found, E* d_query, long start) {
    const Block block = block_at(p, keys, start);
    float *q = free, *d_out = q + p.H * QUERIES, *weights = d_out + p.O * QUERIES;
    float *d_logits = weights + KEYS * QUERIES, *d_q = d_logits + KEYS * QUERIES;
    float *highest = d_q + p.H * QUERIES, *log_total = highest + QUERIES;
    float *delta = log_total + QUERIES, *q_rows = delta + QUERIES;
    float* d_out_rows = q_rows + H * QUERIES;
    for (long i = 0; i < block.columns; i++) {
      const bool sees = read_statistics(p, block, found, i, highest, log_total, delta);
      const long h = sees ? p.H : 0, o = sees ? p.O : 0, row = (start + (sees ? i : 0)) * p.N;
      float *q_row = q_rows + i * H, *d_out_row = d_out_rows + i * O;
      copy(query + row * p.H, h, q_row);
      copy(found.d_output + row * p.O, o, d_out_row);
      std::fill(q_row + h, q_row + H, 0.f);
      std::fill(d_out_row + o, d_out_row + O, 0.f);
    }
    transpose(q_rows, block.columns, p.H, H, p.scale, q, QUERIES);
    transpose(d_out_rows, block.columns, p.O, O, 1, d_out, QUERIES);
    std::fill(d_q, d_q + p.H * QUERIES, 0.f);
    const float d_scale = p.scale * p.kept_scale;
    for (long j = block.first; j < block.last; j += KEYS) {
      const long n = std::min(KEYS, block.last - j);
      const float *key = keys.key + j * p.H, *value = keys.value + j * p.O;
      multiply<false>(n, block.columns, {key, p.H, 1}, q, QUERIES, weights, QUERIES, p.H);
      multiply<false>(n, block.columns, {value, p.O, 1}, d_out, QUERIES, d_logits, QUERIES, p.O);
      hide(p, block, keys, j, n, weights);
      for (long k = 0; k < n; k++)
        for (long i = 0; i < block.columns; i += W) {
          float *w = weights + k * QUERIES + i, *d = d_logits + k * QUERIES + i;
          const Floats e = exponential(load(w) - load(highest + i) - load(log_total + i));
          Floats dropped = e, d_weights = load(d);
          drop(kept, keys.position[j + k], start + i, dropped, d_weights);
          store(w, dropped);
          store(d, e * (d_weights - load(delta + i)) * d_scale);
        }
      multiply<true>(n, O, {weights, QUERIES, 1}, d_out_rows, O, d_value + j * O, O, block.rows);
      multiply<true>(n, H, {d_logits, QUERIES, 1}, q_rows, H, d_key + j * H, H, block.rows);
      multiply<true>(p.H, block.columns, {key, 1, p.H}, d_logits, QUERIES, d_q, QUERIES, n);
    }
    write_rows(d_q, p.H, block.rows, d_query + start * p.N * p.H, p.N * p.H);
  }

  const long H, O;         // with zeros behind
  float *d_key, *d_value;  // [number][H], [number][O]

 private:
  const Problem& p;
  Keys keys;
  float* free;
};

#ifdef TRANSFORMER_JAX_TILES
// The same by AMX. P and dS are rounded.
class GradientsByTiles {
 public:
  static size_t memory(const Problem& p) {
    const long H = rounded_up(p.H, DEPTH), O = rounded_up(p.O, DEPTH), S = padded_keys(p);
    const size_t floats = S * (H + O) + QUERIES * (2 * KEYS + H + 3);
    return floats + (S * (2 * H + O) + QUERIES * (2 * H + 2 * O + 3 * KEYS)) / 2 +
           Seen::memory(p);
  }

  GradientsByTiles(const Problem& p, const BFloat16* key, const BFloat16* value, long b,
                   float* memory)
      : H(rounded_up(p.H, DEPTH)), O(rounded_up(p.O, DEPTH)), d_key(memory),
        d_value(d_key + padded_keys(p) * H), p(p), S(padded_keys(p)),
        logits(d_value + S * O), d_logits(logits + KEYS * QUERIES),
        d_q(d_logits + KEYS * QUERIES), highest(d_q + H * QUERIES), log_total(highest + QUERIES),
        delta(log_total + QUERIES), keys(reinterpret_cast<BFloat16*>(delta + QUERIES)),
        keys_by_column(keys + S * H), values(keys_by_column + S * H), q(values + S * O),
        d_out(q + QUERIES * H), q_rows(d_out + QUERIES * O), d_out_rows(q_rows + QUERIES * H),
        weights(d_out_rows + QUERIES * O), d_rows(weights + KEYS * QUERIES),
        d_pairs(d_rows + KEYS * QUERIES),
        visible(seen_keys(p, b, reinterpret_cast<int32_t*>(d_pairs + KEYS * QUERIES))) {
    copy_rows(p, visible, key, p.H, H, keys);
    copy_rows(p, visible, value, p.O, O, values);
    copy_columns(p, visible, key, p.H, H, S, keys_by_column);
    std::fill(d_key, d_key + S * (H + O), 0.f);
  }

  const Seen& seen() const { return visible; }

  void add(Kept kept, const BFloat16* query, const Outputs<BFloat16>& found, BFloat16* d_query,
           long start) {
    Block block = block_at(p, visible, start);
    block.columns = rounded_up(block.rows, DEPTH);
    std::fill(q, q + 2 * QUERIES * (H + O), BFloat16{});  // and the three factors behind it
    for (long i = 0; i < block.columns; i++) {
      if (!read_statistics(p, block, found, i, highest, log_total, delta)) continue;
      for (long h = 0; h < p.H; h++) {
        const BFloat16 x = query[(start + i) * p.N * p.H + h];
        put(q, QUERIES, h, i, x);
        put(q_rows, H, i, h, x);
      }
      for (long o = 0; o < p.O; o++) {
        const BFloat16 x = found.d_output[(start + i) * p.N * p.O + o];
        put(d_out, QUERIES, o, i, x);
        put(d_out_rows, O, i, o, x);
      }
    }
    std::fill(d_q, d_q + H * QUERIES, 0.f);
    const float d_scale = p.scale * p.kept_scale;
    for (long j = block.first; j < block.last; j += KEYS) {
      const long n = std::min(KEYS, block.last - j), depth = rounded_up(n, DEPTH);
      multiply_by_tiles<false>(n, block.columns, keys + j * H, H, q, 2 * QUERIES, logits, QUERIES,
                               H);
      multiply_by_tiles<false>(n, block.columns, values + j * O, O, d_out, 2 * QUERIES, d_logits,
                               QUERIES, O);
      hide(p, block, visible, j, n, logits);
      for (long k = 0; k < n; k++)
        for (long i = 0; i < block.columns; i += W) {
          const long at = k * QUERIES + i;
          const Floats e =
              exponential(load(logits + at) * p.scale - load(highest + i) - load(log_total + i));
          Floats dropped = e, d_weights = load(d_logits + at);
          drop(kept, visible.position[j + k], start + i, dropped, d_weights);
          const Ints d = rounded(e * (d_weights - load(delta + i)) * d_scale);
          put_row(weights + at, rounded(dropped));
          put_row(d_rows + at, d);
          put_pairs(d_pairs, QUERIES, k, i, d);
        }
      std::fill(weights + n * QUERIES, weights + depth * QUERIES, BFloat16{});
      std::fill(d_rows + n * QUERIES, d_rows + depth * QUERIES, BFloat16{});
      clear_rows(d_pairs, QUERIES, n, depth);
      multiply_by_tiles<true>(n, O, weights, QUERIES, d_out_rows, 2 * O, d_value + j * O, O,
                              block.columns);
      multiply_by_tiles<true>(n, H, d_rows, QUERIES, q_rows, 2 * H, d_key + j * H, H,
                              block.columns);
      multiply_by_tiles<true>(H, block.columns, keys_by_column + j, S, d_pairs, 2 * QUERIES, d_q,
                              QUERIES, depth);
    }
    write_rows(d_q, p.H, block.rows, d_query + start * p.N * p.H, p.N * p.H);
  }

  const long H, O;         // with zeros behind
  float *d_key, *d_value;  // [S][H], [S][O]

 private:
  const Problem& p;
  const long S;                                    // with zeros behind
  float *logits, *d_logits, *d_q;                  // [KEYS][QUERIES], of P too, and [H][QUERIES]
  float *highest, *log_total, *delta;              // [QUERIES]
  BFloat16 *keys, *keys_by_column, *values;        // [S][H], [H][S], [S][O]
  BFloat16 *q, *d_out, *q_rows, *d_out_rows;       // right factors by features and by queries
  BFloat16 *weights, *d_rows, *d_pairs;            // left factors [KEYS][QUERIES], a right factor
  Seen visible;
  Tiles tiles;
};
#endif

// Writes the gradients of all heads.
template <class Gradients, class Pool, class E>
bool differentiate_by(Pool& pool, const Problem& p, const E* query, const E* key, const E* value,
                      const Outputs<E>& found, E* d_query, E* d_key, E* d_value) {
  const long share = p.N / p.K;
  return in_parallel(pool, p.B * p.K, [=](long i) {
    const long head = i % p.K, b = i / p.K, first_key = b * p.S * p.K + head;
    Gradients gradients(p, key + first_key * p.H, value + first_key * p.O, b,
                        scratch(Gradients::memory(p)));
    for (long n = head * share; n < (head + 1) * share; n++) {
      const long first = b * p.T * p.N + n, row = (b * p.N + n) * p.T;
      const Outputs<E> of_head{found.output + first * p.O, found.d_output + first * p.O,
                             {found.statistics.highest + row, found.statistics.log_total + row},
                             found.d_logsumexp ? found.d_logsumexp + row : nullptr};
      for (long start = 0; start < p.T; start += QUERIES)
        gradients.add(Kept(p, b, n), query + first * p.H, of_head, d_query + first * p.H, start);
    }
    const Seen& keys = gradients.seen();
    for (long s = 0, j = 0; s < p.S; s++) {
      E* to_key = d_key + (first_key + s * p.K) * p.H;
      E* to_value = d_value + (first_key + s * p.K) * p.O;
      if (j < keys.number && keys.position[j] == s) {
        float* from = gradients.d_value + j * gradients.O;
        for (long o = 0; o < p.O; o++) from[o] *= p.kept_scale;
        copy(from, p.O, to_value);
        copy(gradients.d_key + j++ * gradients.H, p.H, to_key);
      } else {
        std::fill(to_key, to_key + p.H, E{});
        std::fill(to_value, to_value + p.O, E{});
      }
    }
  });
}

template <class Pool, class E>
bool differentiate(Pool& pool, const Problem& p, const E* query, const E* key, const E* value,
                   const Outputs<E>& found, E* d_query, E* d_key, E* d_value) {
  const auto by = [&](auto run) {
    return run(pool, p, query, key, value, found, d_query, d_key, d_value);
  };
#ifdef TRANSFORMER_JAX_TILES
  if constexpr (std::is_same_v<E, BFloat16>)
    if (p.scale > 0 && tiles_are_allowed()) return by(differentiate_by<GradientsByTiles, Pool, E>);
#endif
  return by(differentiate_by<GradientsByVectors<E>, Pool, E>);
}

}  // namespace

#endif  // TRANSFORMER_JAX_ATTENTION_GRADIENT_H_
