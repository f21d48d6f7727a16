// The output of attention, and the statistics that its gradient needs, of float32 or bfloat16
// arrays, with sums in float32.
//
// This is FlashAttention (Dao et al., 2022, https://arxiv.org/abs/2205.14135): a block of queries
// visits the keys one block at a time and keeps a running maximum m, sum l and output o. Tiles are
// stored with the keys as rows and the queries as columns. A vector then holds one key's logits for
// W queries, so that maxima and sums over the keys need no sum inside a vector.
//
// Keys that padding hides are left out when a head's keys are copied. They cost nothing, and a NaN
// in them is never read.
#ifndef TRANSFORMER_JAX_ATTENTION_FORWARD_H_
#define TRANSFORMER_JAX_ATTENTION_FORWARD_H_

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "attention_problem.h"
#include "attention_tiles.h"
#include "threads.h"
#include "vectors.h"

namespace {

// The products of the forward pass for one head, in float32.
template <class E>
class ByVectors {
 public:
  static size_t memory(const Problem& p) {
    return QUERIES * p.H + p.S * (p.H + p.O) + Seen::memory(p);
  }

  ByVectors(const Problem& p, const E* key, const E* value, long b, float* memory)
      : p(p), q(memory), keys(copied(p, key, value, b, memory + QUERIES * p.H)) {}

  const Seen& seen() const { return keys; }
  float scale() const { return 1; }  // of the logits, since that of the queries is `p.scale`

  void take(const Block& block, const E* query) {
    transpose(query + block.start * p.N * p.H, block.rows, p.H, p.N * p.H, p.scale, q, QUERIES);
    // The columns behind the last query reach no result, but denormal numbers there would be slow.
    if (block.rows < block.columns)
      for (float* row = q; row < q + p.H * QUERIES; row += QUERIES)
        std::fill(row + block.rows, row + block.columns, 0.f);
  }
  void multiply_keys(const Block& block, long j, long n, float* logits) {
    multiply<false>(n, block.columns, {keys.key + j * p.H, p.H, 1}, q, QUERIES, logits, QUERIES,
                    p.H);
  }
  // Keeps the weights of key k for the queries from i on, where their logits were.
  void keep(long k, long i, Floats weight, float* logits) {
    store(logits + k * QUERIES + i, weight);
  }
  void add_values(const Block& block, long j, long n, const float* weights, float* sum) {
    multiply<true>(p.O, block.columns, {keys.value + j * p.O, 1, p.O}, weights, QUERIES, sum,
                   QUERIES, n);
  }

 private:
  const Problem& p;
  float* q;
  Keys keys;
};

#ifdef TRANSFORMER_JAX_TILES
// The products of bfloat16 arrays by AMX: sums are in float32, and the weights are rounded.
class ByTiles {
 public:
  static size_t memory(const Problem& p) {
    const long H = rounded_up(p.H, DEPTH), O = rounded_up(p.O, TILE);
    return (QUERIES * (H + KEYS) + padded_keys(p) * (H + O)) / 2 + Seen::memory(p);
  }

  ByTiles(const Problem& p, const BFloat16* key, const BFloat16* value, long b, float* memory)
      : p(p), H(rounded_up(p.H, DEPTH)), O(rounded_up(p.O, TILE)), S(padded_keys(p)),
        q(reinterpret_cast<BFloat16*>(memory)), weights(q + QUERIES * H),
        keys(weights + QUERIES * KEYS), values(keys + S * H),
        visible(seen_keys(p, b, reinterpret_cast<int32_t*>(values + O * S))) {
    copy_rows(p, visible, key, p.H, H, keys);
    copy_columns(p, visible, value, p.O, O, S, values);
  }

  const Seen& seen() const { return visible; }
  float scale() const { return p.scale; }

  void take(const Block& block, const BFloat16* query) {
    std::fill(q, q + QUERIES * H, BFloat16{});
    for (long i = 0; i < block.rows; i++)
      for (long h = 0; h < p.H; h++)
        put(q, QUERIES, h, i, query[(block.start + i) * p.N * p.H + h]);
  }
  void multiply_keys(const Block& block, long j, long n, float* logits) {
    multiply_by_tiles<false>(n, block.columns, keys + j * H, H, q, 2 * QUERIES, logits, QUERIES, H);
  }
  void keep(long k, long i, Floats weight, float*) {
    put_pairs(weights, QUERIES, k, i, rounded(weight));
  }
  void add_values(const Block& block, long j, long n, const float*, float* sum) {
    const long depth = rounded_up(n, DEPTH);
    clear_rows(weights, QUERIES, n, depth);
    multiply_by_tiles<true>(O, block.columns, values + j, S, weights, 2 * QUERIES, sum, QUERIES,
                            depth);
  }

 private:
  const Problem& p;
  long H, O, S;             // with zeros behind
  BFloat16 *q, *weights;    // right factors of QUERIES columns
  BFloat16 *keys, *values;  // [S][H], [O][S]
  Seen visible;
  Tiles tiles;
};
#endif

size_t forward_memory(const Problem& p) { return QUERIES * (KEYS + rounded_up(p.O, W) + 3); }

template <class Products, class E>
void forward(const Problem& p, Products& products, Kept kept, const E* query, E* output,
             Statistics found, long start, float* memory) {
  const Seen& keys = products.seen();
  const Block block = block_at(p, keys, start);
  float *weights = memory, *sum = weights + KEYS * QUERIES;
  float *highest = sum + rounded_up(p.O, W) * QUERIES, *total = highest + QUERIES;
  float* shrink = total + QUERIES;
  const float scale = products.scale();
  products.take(block, query);
  std::fill(sum, highest, 0.f);
  std::fill(highest, highest + QUERIES, -INF);
  std::fill(total, total + QUERIES, 0.f);
  for (long j = block.first; j < block.last; j += KEYS) {
    const long n = std::min(KEYS, block.last - j);
    products.multiply_keys(block, j, n, weights);
    hide(p, block, keys, j, n, weights);
    for (long i = 0; i < block.columns; i += W) {
      const Floats before = load(highest + i);
      Floats top = before, added{};
      for (long k = 0; k < n; k++) {
        const Floats x = load(weights + k * QUERIES + i) * scale;
        top = x > top ? x : top;
      }
      const Floats shift = top == same(-INF) ? Floats{} : top;
      for (long k = 0; k < n; k++) {
        const Floats e = exponential(load(weights + k * QUERIES + i) * scale - shift);
        added += e;
        products.keep(k, i, kept.bytes ? kept.apply(keys.position[j + k], start + i, e) : e,
                      weights);
      }
      const Floats less = exponential(before - shift);
      store(shrink + i, less);
      store(total + i, load(total + i) * less + added);
      store(highest + i, top);
    }
    if (j > block.first)
      for (long o = 0; o < p.O; o++)
        for (long i = 0; i < block.columns; i += W)
          store(sum + o * QUERIES + i, load(sum + o * QUERIES + i) * load(shrink + i));
    products.add_values(block, j, n, weights, sum);
  }
  for (long i = 0; i < block.columns; i += W) {
    const Floats all = load(total + i), by = all == Floats{} ? Floats{} : p.kept_scale / all;
    for (long o = 0; o < p.O; o++)
      store(sum + o * QUERIES + i, load(sum + o * QUERIES + i) * by);
  }
  write_rows(sum, p.O, block.rows, output + start * p.N * p.O, p.N * p.O);
  for (long i = 0; i < block.rows; i++) {
    found.highest[start + i] = highest[i];
    found.log_total[start + i] = std::log(total[i]);
  }
}

// Writes the output and the statistics of the only query of a head, reading keys and values once. A
// tile would leave all columns but one empty.
template <class E>
void attend_once(const Problem& p, long b, const E* query, const E* key, const E* value, E* output,
                 float* highest, float* log_total) {
  const uint8_t* seen = p.is_token ? p.is_token + (p.tokens > 1 ? b : 0) * p.S : nullptr;
  const long step = p.key_step();
  float *q = scratch(p.H + 2 * rounded_up(p.S)), *weights = q + p.H;
  int32_t* position = reinterpret_cast<int32_t*>(weights + rounded_up(p.S));
  for (long h = 0; h < p.H; h++) q[h] = read(query[h]) * p.scale;
  long number = 0;
  float top = -INF;
  for (long s = 0; s < p.S; s++) {
    if (seen && !seen[s]) continue;
    Floats product{};
    for (long h = 0; h < p.H; h += W)
      product = fused(load(key + s * step * p.H + h), load(q + h), product);
    weights[number] = sum_of(product);
    top = std::max(top, weights[number]);
    position[number++] = s;
  }
  std::fill(weights + number, weights + rounded_up(number), -INF);
  Floats total{};
  for (long k = 0; k < number; k += W) {
    const Floats e = exponential(load(weights + k) - top);
    total += e;
    store(weights + k, e);
  }
  const float all = sum_of(total), by = all == 0 ? 0.f : 1 / all;
  for (long o = 0; o < p.O; o += N * W) {
    const long columns = std::min((long)N, (p.O - o) / W);
    Floats sum[N] = {};
    for (long k = 0; k < number; k++) {
      const E* row = value + position[k] * step * p.O + o;
      for (long n = 0; n < columns; n++)
        sum[n] = fused(load(row + n * W), same(weights[k]), sum[n]);
    }
    for (long n = 0; n < columns; n++) store(output + o + n * W, sum[n] * by);
  }
  *highest = top;
  *log_total = std::log(all);
}

// Writes the output and the statistics of all heads.
template <class Products, class Pool, class E>
bool attend_by(Pool& pool, const Problem& p, const E* query, const E* key, const E* value,
               E* output, Statistics found) {
  const long share = p.N / p.K, blocks = (p.T + QUERIES - 1) / QUERIES * share;
  // Each part of a key head's blocks copies the keys, so there are as few as keep the threads busy.
  const long heads = p.B * p.K, wanted = 3 * pool.num_threads();
  const long parts = std::min(blocks, std::max(1L, (wanted + heads - 1) / heads));
  return in_parallel(pool, heads * parts, [=](long i) {
    const long part = i % parts, head = i / parts % p.K, b = i / parts / p.K;
    const long first_key = p.first_key(b, head);
    float* memory = scratch(forward_memory(p) + Products::memory(p));
    Products products(p, key + first_key * p.H, value + first_key * p.O, b,
                      memory + forward_memory(p));
    // Neighbouring blocks go to different parts, because causal ones differ in their work.
    for (long block = part; block < blocks; block += parts) {
      const long n = head * share + block % share, row = (b * p.N + n) * p.T;
      const long first = b * p.T * p.N + n;
      forward(p, products, Kept(p, b, n), query + first * p.H, output + first * p.O,
              {found.highest + row, found.log_total + row}, block / share * QUERIES, memory);
    }
  });
}

template <class Pool, class E>
bool attend(Pool& pool, const Problem& p, const E* query, const E* key, const E* value, E* output,
            Statistics found) {
  const bool only_padding = p.left < 0 && p.right < 0 && !p.query_ids;
  if (p.T == 1 && only_padding && !p.kept && p.H % W == 0 && p.O % W == 0)
    return in_parallel(pool, p.B * p.N, [=](long i) {
      const long b = i / p.N, first_key = p.first_key(b, i % p.N / (p.N / p.K));
      attend_once(p, b, query + i * p.H, key + first_key * p.H, value + first_key * p.O,
                  output + i * p.O, found.highest + i, found.log_total + i);
    });
#ifdef TRANSFORMER_JAX_TILES
  // A scale of 0 would make NaN of hidden logits, and a negative one infinity.
  if constexpr (std::is_same_v<E, BFloat16>)
    if (p.scale > 0 && tiles_are_allowed())
      return attend_by<ByTiles>(pool, p, query, key, value, output, found);
#endif
  return attend_by<ByVectors<E>>(pool, p, query, key, value, output, found);
}

}  // namespace

#endif  // TRANSFORMER_JAX_ATTENTION_FORWARD_H_
