// Attention on a CPU, and its gradient, of float32 or bfloat16 arrays, with sums in float32.
// `cpu.py` describes, builds and calls it.
//
// This is FlashAttention (Dao et al., 2022, https://arxiv.org/abs/2205.14135): a block of queries
// visits the keys one block at a time and keeps a running maximum m, sum l and output o. Tiles are
// stored with the keys as rows and the queries as columns. A vector then holds one key's logits for
// W queries, so that maxima and sums over the keys need no sum inside a vector.
//
// Keys that padding hides are left out when a head's keys are copied. They cost nothing, and a NaN
// in them is never read.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>

#include "cpu_tiles.h"
#include "cpu_vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr long QUERIES = 64, KEYS = 128;  // of a tile

// The sizes, by the letters of the library, and the mask: the query at t sees the keys from
// t + S - T - left to t + S - T + right. A negative number is no bound.
struct Problem {
  long B, T, N, H, S, K, O, left, right;
  float scale;
  const uint8_t* is_token;  // [tokens, S], or null
  long tokens;              // 1 or B
  bool heads_first = false;  // whether the keys and values of a head follow each other in memory

  // The number of rows of keys, of all heads, before the first of a head, and between two of them.
  long first_key(long b, long head) const {
    return heads_first ? (b * K + head) * S : b * S * K + head;
  }
  long key_step() const { return heads_first ? 1 : K; }
};

// Memory of a thread, kept between calls. It begins with a line of the cache.
float* scratch(size_t floats) {
  constexpr size_t LINE = 64;
  static thread_local std::unique_ptr<float[]> memory;
  static thread_local size_t size = 0;
  if (size < floats) {
    memory.reset();
    size = 0;
    memory.reset(new float[floats + LINE / sizeof(float)]);
    size = floats;
  }
  const auto address = reinterpret_cast<uintptr_t>(memory.get());
  return memory.get() + (LINE - address % LINE) % LINE / sizeof(float);
}

// The keys that padding leaves.
struct Seen {
  int32_t* position;  // of each
  long number;
};

Seen seen_keys(const Problem& p, long b, int32_t* memory) {
  Seen seen{memory, 0};
  const uint8_t* is_token = p.is_token ? p.is_token + (p.tokens > 1 ? b : 0) * p.S : nullptr;
  for (long s = 0; s < p.S; s++)
    if (!is_token || is_token[s]) seen.position[seen.number++] = s;
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
};

Block block_at(const Problem& p, const Seen& keys, long start) {
  Block block{start, std::min(QUERIES, p.T - start), 0, start + p.S - p.T, 0, keys.number};
  block.columns = rounded_up(block.rows);
  const int32_t *begin = keys.position, *end = begin + keys.number;
  if (p.left >= 0)
    block.first = std::lower_bound(begin, end, block.position - p.left) - keys.position;
  if (p.right >= 0)
    block.last = std::upper_bound(begin, end, block.position + block.rows - 1 + p.right) -
                 keys.position;
  block.last = std::max(block.first, block.last);
  return block;
}

// Sets the logits [key][query] of keys that a query does not see to -inf.
void hide(const Problem& p, const Block& block, const Seen& keys, long j, long n, float* logits) {
  const int32_t *position = keys.position + j, at = block.position;
  const bool left = p.left >= 0 && position[0] < at + block.rows - 1 - p.left;
  const bool right = p.right >= 0 && position[n - 1] > at + p.right;
  if (!left && !right) return;
  Ints lane;
  for (int i = 0; i < W; i++) lane[i] = at + i;
  const Ints far = Ints{} + (1 << 30);
  for (long k = 0; k < n; k++)
    for (long i = 0; i < block.columns; i += W) {
      const Ints query = lane + (int32_t)i, key = Ints{} + position[k];
      const Ints first = left ? query - (int32_t)p.left : -far;
      const Ints last = right ? query + (int32_t)p.right : far;
      float* x = logits + k * QUERIES + i;
      store(x, ((key >= first) & (key <= last)) ? load(x) : same(-INF));
    }
}

// Writes rows [rows][width], at `stride`, times `scale` as columns [width][QUERIES].
template <class E>
void transpose(const E* rows, long number, long stride, long width, float scale, float* out) {
  const long columns = rounded_up(number);
  for (long w = 0; w < width; w++, out += QUERIES) {
    for (long i = 0; i < number; i++) out[i] = read(rows[i * stride + w]) * scale;
    for (long i = number; i < columns; i++) out[i] = 0;
  }
}

struct Statistics {
  float *highest, *log_total;  // of one head, [T]
};

// The products of the forward pass for one head, in float32.
template <class E>
class ByVectors {
 public:
  static size_t memory(const Problem& p) { return QUERIES * p.H + p.S * (p.H + p.O + 1); }

  ByVectors(const Problem& p, const E* key, const E* value, long b, float* memory)
      : p(p), q(memory), keys(copied(p, key, value, b, memory + QUERIES * p.H)) {}

  const Seen& seen() const { return keys; }
  float scale() const { return 1; }  // of the logits, since that of the queries is `p.scale`

  void take(const Block& block, const E* query) {
    transpose(query + block.start * p.N * p.H, block.rows, p.N * p.H, p.H, p.scale, q);
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
// The products of bfloat16 arrays by AMX: sums are in float32, and the weights are rounded. Queries
// and weights are kept as tiles need them, two of a column side by side.
class ByTiles {
 public:
  static size_t memory(const Problem& p) {
    const long H = rounded_up(p.H, DEPTH), O = rounded_up(p.O, TILE), S = rounded_up(p.S, DEPTH);
    return (QUERIES * (H + KEYS) + (S + DEPTH) * (H + O)) / 2 + S;
  }

  ByTiles(const Problem& p, const BFloat16* key, const BFloat16* value, long b, float* memory)
      : p(p), H(rounded_up(p.H, DEPTH)), O(rounded_up(p.O, TILE)),
        S(rounded_up(p.S, DEPTH) + DEPTH), q(reinterpret_cast<BFloat16*>(memory)),
        weights(q + QUERIES * H), keys(weights + QUERIES * KEYS), values(keys + S * H),
        visible(seen_keys(p, b, reinterpret_cast<int32_t*>(values + O * S))) {
    const long number = visible.number, step = p.key_step();
    std::fill(keys, keys + (number + DEPTH) * H, BFloat16{});
    for (long j = 0; j < number; j++)
      copy(key + visible.position[j] * step * p.H, p.H, keys + j * H);
    for (long o = 0; o < O; o++) {
      std::fill(values + o * S, values + o * S + (o < p.O ? 0 : number), BFloat16{});
      std::fill(values + o * S + number, values + o * S + number + DEPTH, BFloat16{});
    }
    for (long j = 0; j < number; j++) {
      const BFloat16* row = value + visible.position[j] * step * p.O;
      for (long o = 0; o < p.O; o++) values[o * S + j] = row[o];
    }
  }

  const Seen& seen() const { return visible; }
  float scale() const { return p.scale; }

  void take(const Block& block, const BFloat16* query) {
    std::fill(q, q + QUERIES * H, BFloat16{});
    for (long i = 0; i < block.rows; i++) {
      const BFloat16* row = query + (block.start + i) * p.N * p.H;
      for (long h = 0; h < p.H; h++) q[h / 2 * 2 * QUERIES + 2 * i + h % 2] = row[h];
    }
  }
  void multiply_keys(const Block& block, long j, long n, float* logits) {
    multiply_by_tiles<false>(n, block.columns, keys + j * H, H, q, 2 * QUERIES, logits, QUERIES, H);
  }
  void keep(long k, long i, Floats weight, float*) {
    Ints* pair = reinterpret_cast<Ints*>(weights + k / 2 * 2 * QUERIES + 2 * i);
    Ints bits = reinterpret_cast<Ints>(weight);
    bits += 0x7fff + (bits >> 16 & 1);
    *pair = k % 2 ? (bits & ~0xffff) | *pair : bits >> 16 & 0xffff;
  }
  void add_values(const Block& block, long j, long n, const float*, float* sum) {
    const long depth = rounded_up(n, DEPTH);
    std::fill(weights + (n + 1) / 2 * 2 * QUERIES, weights + depth * QUERIES, BFloat16{});
    multiply_by_tiles<true>(O, block.columns, values + j, S, weights, 2 * QUERIES, sum, QUERIES,
                            depth);
  }

 private:
  const Problem& p;
  long H, O, S;            // with zeros behind
  BFloat16 *q, *weights;   // [H / 2][QUERIES][2], [KEYS / 2][QUERIES][2]
  BFloat16 *keys, *values;  // [S][H], [O][S]
  Seen visible;
  Tiles tiles;
};
#endif

size_t forward_memory(const Problem& p) { return QUERIES * (KEYS + rounded_up(p.O, W) + 3); }

template <class Products, class E>
void forward(const Problem& p, Products& products, const E* query, E* output, Statistics found,
             long start, float* memory) {
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
        products.keep(k, i, e, weights);
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
  for (long i = 0; i < block.rows; i++) {
    const float by = total[i] == 0 ? 0.f : 1 / total[i];
    E* row = output + (start + i) * p.N * p.O;
    for (long o = 0; o < p.O; o++) write(row + o, sum[o * QUERIES + i] * by);
    found.highest[start + i] = highest[i];
    found.log_total[start + i] = std::log(total[i]);
  }
}

// The gradients of one key head: d_key [number][H rounded up] and d_value [number][O rounded up].
struct KeyGradients {
  float *key, *value;
};

size_t backward_memory(const Problem& p) {
  return QUERIES * (2 * p.H + p.O + 2 * KEYS + 3 + rounded_up(p.H) + rounded_up(p.O));
}

// Adds to the gradients of the keys and values, and writes those of a block of queries:
//     P = e^(S - m - log l)    dV = P^T dO    dS = P (dO V^T - delta)    dQ = dS K    dK = dS^T Q
template <class E>
void backward(const Problem& p, const Keys& keys, const E* query, const E* d_output,
              Statistics found, const float* delta, E* d_query, KeyGradients gradients, long start,
              float* memory) {
  const Block block = block_at(p, keys, start);
  const long H = rounded_up(p.H), O = rounded_up(p.O);
  float *q = memory, *d_out = q + p.H * QUERIES, *weights = d_out + p.O * QUERIES;
  float *d_logits = weights + KEYS * QUERIES, *d_q = d_logits + KEYS * QUERIES;
  float *highest = d_q + p.H * QUERIES, *log_total = highest + QUERIES, *less = log_total + QUERIES;
  float *q_rows = less + QUERIES, *d_out_rows = q_rows + H * QUERIES;
  std::fill(q_rows, q_rows + (H + O) * QUERIES, 0.f);
  for (long i = 0; i < block.columns; i++) {
    // A query that sees no key, or is beyond the last, has no gradient.
    const bool sees = i < block.rows && found.highest[start + i] != -INF;
    highest[i] = sees ? found.highest[start + i] : 0;
    log_total[i] = sees ? found.log_total[start + i] : 0;
    less[i] = sees ? delta[start + i] : 0;
    if (!sees) continue;
    copy(query + (start + i) * p.N * p.H, p.H, q_rows + i * H);
    copy(d_output + (start + i) * p.N * p.O, p.O, d_out_rows + i * O);
  }
  transpose(q_rows, block.rows, H, p.H, p.scale, q);
  transpose(d_out_rows, block.rows, O, p.O, 1, d_out);
  std::fill(d_q, d_q + p.H * QUERIES, 0.f);
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
        store(w, e);
        store(d, e * (load(d) - load(less + i)) * p.scale);
      }
    multiply<true>(n, O, {weights, QUERIES, 1}, d_out_rows, O, gradients.value + j * O, O,
                   block.rows);
    multiply<true>(n, H, {d_logits, QUERIES, 1}, q_rows, H, gradients.key + j * H, H, block.rows);
    multiply<true>(p.H, block.columns, {key, 1, p.H}, d_logits, QUERIES, d_q, QUERIES, n);
  }
  for (long i = 0; i < block.rows; i++) {
    E* row = d_query + (start + i) * p.N * p.H;
    for (long h = 0; h < p.H; h++) write(row + h, d_q[h * QUERIES + i]);
  }
}

// Calls work(i) for all 0 <= i < n, on this thread and those of the pool. Returns whether there was
// enough memory.
template <class Pool, class Work>
bool in_parallel(Pool& pool, long n, Work work) {
  struct State {
    std::atomic<long> next{0}, done{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::condition_variable all_done;
  };
  auto state = std::make_shared<State>();
  auto run = [state, n, work] {
    for (long i; (i = state->next++) < n;) {
      try {
        work(i);
      } catch (const std::bad_alloc&) {
        state->failed = true;
      }
      if (++state->done == n) {
        std::lock_guard<std::mutex> lock(state->mutex);
        state->all_done.notify_all();
      }
    }
  };
  for (long helpers = std::min<long>(n, pool.num_threads()) - 1; helpers > 0; helpers--) {
    auto copy = run;
    pool.Schedule(std::move(copy));
  }
  run();
  std::unique_lock<std::mutex> lock(state->mutex);
  state->all_done.wait(lock, [&] { return state->done == n; });
  return !state->failed;
}

inline float sum_of(Floats x) {
  float lanes[W];
  store(lanes, x);
  for (int w = W / 2; w > 0; w /= 2)
    for (int i = 0; i < w; i++) lanes[i] += lanes[i + w];
  return lanes[0];
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
    for (long h = 0; h < p.H; h += W) product += load(key + s * step * p.H + h) * load(q + h);
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
      for (long n = 0; n < columns; n++) sum[n] += load(row + n * W) * weights[k];
    }
    for (long n = 0; n < columns; n++) {
      float found[W];
      store(found, sum[n] * by);
      copy(found, W, output + o + n * W);
    }
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
      forward(p, products, query + first * p.H, output + first * p.O,
              {found.highest + row, found.log_total + row}, block / share * QUERIES, memory);
    }
  });
}

template <class Pool, class E>
bool attend(Pool& pool, const Problem& p, const E* query, const E* key, const E* value, E* output,
            Statistics found) {
  const bool without_bounds = p.left < 0 && p.right < 0;
  if (p.T == 1 && without_bounds && p.H % W == 0 && p.O % W == 0)
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

// Writes the gradients of all heads.
template <class Pool, class E>
bool differentiate(Pool& pool, const Problem& p, const E* query, const E* key, const E* value,
                   const E* d_output, Statistics found, const float* delta, E* d_query, E* d_key,
                   E* d_value) {
  const long share = p.N / p.K, H = rounded_up(p.H), O = rounded_up(p.O);
  return in_parallel(pool, p.B * p.K, [=](long i) {
    const long head = i % p.K, b = i / p.K, first_key = b * p.S * p.K + head;
    float* memory = scratch(backward_memory(p) + p.S * (p.H + p.O + 1 + H + O));
    const Keys keys = copied(p, key + first_key * p.H, value + first_key * p.O, b,
                             memory + backward_memory(p));
    float* sums = memory + backward_memory(p) + p.S * (p.H + p.O + 1);
    std::fill(sums, sums + p.S * (H + O), 0.f);
    const KeyGradients gradients{sums, sums + p.S * H};
    for (long n = head * share; n < (head + 1) * share; n++) {
      const long first = b * p.T * p.N + n, row = (b * p.N + n) * p.T;
      for (long start = 0; start < p.T; start += QUERIES)
        backward(p, keys, query + first * p.H, d_output + first * p.O,
                 {found.highest + row, found.log_total + row}, delta + row, d_query + first * p.H,
                 gradients, start, memory);
    }
    for (long s = 0, j = 0; s < p.S; s++) {
      E* to_key = d_key + (first_key + s * p.K) * p.H;
      E* to_value = d_value + (first_key + s * p.K) * p.O;
      if (j < keys.number && keys.position[j] == s) {
        copy(gradients.key + j * H, p.H, to_key);
        copy(gradients.value + j++ * O, p.O, to_value);
      } else {
        std::fill(to_key, to_key + p.H, E{});
        std::fill(to_value, to_value + p.O, E{});
      }
    }
  });
}

using Floats32 = ffi::Buffer<ffi::F32>;
using Mask = ffi::Buffer<ffi::PRED>;

// The arrays of one dtype, and its elements.
template <ffi::DataType DTYPE, class E>
struct Kernel {
  using Array = ffi::Buffer<DTYPE>;
  using Result = ffi::ResultBuffer<DTYPE>;
  using Rows = ffi::ResultBuffer<ffi::F32>;

  static const E* read(const Array& array) {
    return reinterpret_cast<const E*>(array.typed_data());
  }
  static E* written(Result& result) { return reinterpret_cast<E*>(result->typed_data()); }

  // The logical shapes have the heads first, [B, K, G, T, H] and [B, K, S, H] with N = K G; in
  // memory they come behind T and S, except for keys and values that are `heads_first`. Without
  // padding `is_token` has no elements.
  static Problem problem(const Array& query, const Array& key, const Array& value,
                         const Mask& is_token, int64_t left, int64_t right, float scale) {
    const auto q = query.dimensions(), k = key.dimensions(), v = value.dimensions();
    const bool padded = is_token.element_count() > 0;
    const auto* tokens =
        padded ? reinterpret_cast<const uint8_t*>(is_token.typed_data()) : nullptr;
    return {q[0], q[3],  q[1] * q[2], q[4],  k[2],   k[1],
            v[3], left, right,       scale, tokens, (long)is_token.dimensions()[0]};
  }

  static ffi::Error forward(ffi::ThreadPool pool, Array query, Array key, Array value,
                            Mask is_token, Result output, Rows highest, Rows log_total,
                            int64_t left, int64_t right, float scale, bool heads_first) {
    Problem p = problem(query, key, value, is_token, left, right, scale);
    p.heads_first = heads_first;
    if (const auto error = checked(p, key, value); error.failure()) return error;
    return ended(attend(pool, p, read(query), read(key), read(value), written(output),
                        {highest->typed_data(), log_total->typed_data()}));
  }

  static ffi::Error backward(ffi::ThreadPool pool, Array query, Array key, Array value,
                             Mask is_token, Array d_output, Floats32 highest, Floats32 log_total,
                             Floats32 delta, Result d_query, Result d_key, Result d_value,
                             int64_t left, int64_t right, float scale) {
    const Problem p = problem(query, key, value, is_token, left, right, scale);
    if (const auto error = checked(p, key, value, d_output, highest, log_total, delta);
        error.failure())
      return error;
    return ended(differentiate(
        pool, p, read(query), read(key), read(value), read(d_output),
        {highest.typed_data(), log_total.typed_data()}, delta.typed_data(), written(d_query),
        written(d_key), written(d_value)));
  }

  // Returns an error if the batches differ, which would be read beyond their ends.
  template <class... Arrays>
  static ffi::Error checked(const Problem& p, const Arrays&... arrays) {
    if (((arrays.dimensions()[0] == p.B) && ...) && (p.tokens == 1 || p.tokens == p.B))
      return ffi::Error::Success();
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, "attention on a CPU: the batches differ");
  }

  static ffi::Error ended(bool enough_memory) {
    if (enough_memory) return ffi::Error::Success();
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "attention on a CPU: out of memory");
  }
};

using OfFloat32 = Kernel<ffi::F32, float>;
using OfBFloat16 = Kernel<ffi::BF16, BFloat16>;

}  // namespace

// Arguments and results in the order of `forward` and `backward`.
#define ARGUMENTS(KERNEL)                                                              \
  ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<KERNEL::Array>().Arg<KERNEL::Array>()    \
      .Arg<KERNEL::Array>().Arg<Mask>()
#define NUMBERS Attr<int64_t>("left").Attr<int64_t>("right").Attr<float>("scale")
#define HANDLERS(DTYPE, KERNEL)                                                        \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                       \
      attention_forward_##DTYPE, KERNEL::forward,                                      \
      ARGUMENTS(KERNEL).Ret<KERNEL::Array>().Ret<Floats32>().Ret<Floats32>()           \
          .NUMBERS.Attr<bool>("heads_first"));                                         \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                       \
      attention_backward_##DTYPE, KERNEL::backward,                                    \
      ARGUMENTS(KERNEL).Arg<KERNEL::Array>().Arg<Floats32>().Arg<Floats32>()           \
          .Arg<Floats32>().Ret<KERNEL::Array>().Ret<KERNEL::Array>()                   \
          .Ret<KERNEL::Array>().NUMBERS)

HANDLERS(float32, OfFloat32);
HANDLERS(bfloat16, OfBFloat16);
