// Attention on a CPU, and its gradient, in float32. `cpu.py` describes, builds and calls it.
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
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// W floats fit a vector register. A product computes M rows of N vectors in registers: with 32
// registers 6 x 4, with 16 registers 6 x 2.
#if defined(__AVX512F__)
constexpr int W = 16, M = 6, N = 4;
#else
constexpr int W = 8, M = 6, N = 2;
#endif
constexpr long QUERIES = 64, KEYS = 128;  // of a tile
constexpr float INF = std::numeric_limits<float>::infinity();

typedef float Floats __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(W * 4), aligned(4), may_alias));

inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
inline void store(float* to, Floats x) { *reinterpret_cast<Floats*>(to) = x; }
inline Floats same(float x) { return Floats{} + x; }

// Returns e^x, 0 below the least normal number, to 2 units in the last place. After Cephes
// (https://www.netlib.org/cephes): x = n log 2 + r, and a polynomial for e^r.
inline Floats exponential(Floats x) {
  const Floats least = same(-87.33f);
  const float round = 12582912.f;  // adding 1.5 * 2^23 rounds to a whole number
  Floats n = (least > x ? least : x) * 1.44269504f + round;
  const Ints exponent = reinterpret_cast<Ints>(n) << 23;
  n -= round;
  const Floats r = (least > x ? least : x) - n * 0.693359375f + n * 2.12194440e-4f;
  Floats p = same(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return least > x ? Floats{} : reinterpret_cast<Floats>(reinterpret_cast<Ints>(p) + exponent);
}

// A matrix whose element (r, k) is at data[r * row + k * column].
struct Matrix {
  const float* data;
  long row, column;
};

// c = a b, or c += a b, for R rows and V vectors of c. Rows of b and c are contiguous.
template <int R, int V, bool ADD>
inline void multiply_in_registers(Matrix a, const float* b, long b_row, float* c, long c_row,
                                  long depth) {
  Floats sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) sum[r][v] = ADD ? load(c + r * c_row + v * W) : Floats{};
  for (long k = 0; k < depth; k++) {
    Floats right[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) right[v] = load(b + k * b_row + v * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Floats left = same(a.data[r * a.row + k * a.column]);
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) sum[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) store(c + r * c_row + v * W, sum[r][v]);
}

// Does so for `rows` rows: M at a time, then those that remain.
template <int R, int V, bool ADD>
inline void multiply_rows(long rows, Matrix a, const float* b, long b_row, float* c, long c_row,
                          long depth) {
  if constexpr (R > 0) {
    for (; rows >= R; rows -= R, a.data += R * a.row, c += R * c_row)
      multiply_in_registers<R, V, ADD>(a, b, b_row, c, c_row, depth);
    if (rows > 0) multiply_rows<R - 1, V, ADD>(rows, a, b, b_row, c, c_row, depth);
  }
}

// Does so for `columns` columns, a multiple of W: N vectors at a time, then those that remain.
template <int V, bool ADD>
inline void multiply_columns(long rows, long columns, Matrix a, const float* b, long b_row,
                             float* c, long c_row, long depth) {
  if constexpr (V > 0) {
    for (; columns >= V * W; columns -= V * W, b += V * W, c += V * W)
      multiply_rows<M, V, ADD>(rows, a, b, b_row, c, c_row, depth);
    if (columns > 0)
      multiply_columns<V - 1, ADD>(rows, columns, a, b, b_row, c, c_row, depth);
  }
}

template <bool ADD>
void multiply(long rows, long columns, Matrix a, const float* b, long b_row, float* c, long c_row,
              long depth) {
  multiply_columns<N, ADD>(rows, columns, a, b, b_row, c, c_row, depth);
}

long rounded_up(long x) { return (x + W - 1) / W * W; }

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

// Memory of a thread, kept between calls.
float* scratch(size_t floats) {
  static thread_local std::unique_ptr<float[]> memory;
  static thread_local size_t size = 0;
  if (size < floats) {
    memory.reset();
    size = 0;
    memory.reset(new float[floats]);
    size = floats;
  }
  return memory.get();
}

// The keys and values of one head that padding leaves, copied to contiguous rows.
struct Keys {
  float *key, *value;
  int32_t* position;  // of each key that is left
  long number;
};

Keys copied(const Problem& p, const float* key, const float* value, long b, float* memory) {
  Keys keys{memory, memory + p.S * p.H, reinterpret_cast<int32_t*>(memory + p.S * (p.H + p.O)), 0};
  const uint8_t* seen = p.is_token ? p.is_token + (p.tokens > 1 ? b : 0) * p.S : nullptr;
  const long step = p.key_step();
  for (long s = 0; s < p.S; s++) {
    if (seen && !seen[s]) continue;
    std::memcpy(keys.key + keys.number * p.H, key + s * step * p.H, sizeof(float) * p.H);
    std::memcpy(keys.value + keys.number * p.O, value + s * step * p.O, sizeof(float) * p.O);
    keys.position[keys.number++] = s;
  }
  return keys;
}

// A block of queries, and the keys that it may see: the indices first <= j < last.
struct Block {
  long start, rows, columns, position, first, last;
};

Block block_at(const Problem& p, const Keys& keys, long start) {
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
void hide(const Problem& p, const Block& block, const Keys& keys, long j, long n, float* logits) {
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
void transpose(const float* rows, long number, long stride, long width, float scale, float* out) {
  const long columns = rounded_up(number);
  for (long w = 0; w < width; w++, out += QUERIES) {
    for (long i = 0; i < number; i++) out[i] = rows[i * stride + w] * scale;
    for (long i = number; i < columns; i++) out[i] = 0;
  }
}

struct Statistics {
  float *highest, *log_total;  // of one head, [T]
};

size_t forward_memory(const Problem& p) { return QUERIES * (p.H + KEYS + p.O + 3); }

void forward(const Problem& p, const Keys& keys, const float* query, float* output,
             Statistics found, long start, float* memory) {
  const Block block = block_at(p, keys, start);
  float *q = memory, *weights = q + p.H * QUERIES, *sum = weights + KEYS * QUERIES;
  float *highest = sum + p.O * QUERIES, *total = highest + QUERIES, *shrink = total + QUERIES;
  transpose(query + start * p.N * p.H, block.rows, p.N * p.H, p.H, p.scale, q);
  std::fill(sum, sum + p.O * QUERIES, 0.f);
  std::fill(highest, highest + QUERIES, -INF);
  std::fill(total, total + QUERIES, 0.f);
  for (long j = block.first; j < block.last; j += KEYS) {
    const long n = std::min(KEYS, block.last - j);
    multiply<false>(n, block.columns, {keys.key + j * p.H, p.H, 1}, q, QUERIES, weights, QUERIES,
                    p.H);
    hide(p, block, keys, j, n, weights);
    for (long i = 0; i < block.columns; i += W) {
      const Floats before = load(highest + i);
      Floats top = before, added{};
      for (long k = 0; k < n; k++) {
        const Floats x = load(weights + k * QUERIES + i);
        top = x > top ? x : top;
      }
      const Floats shift = top == same(-INF) ? Floats{} : top;
      for (long k = 0; k < n; k++) {
        const Floats e = exponential(load(weights + k * QUERIES + i) - shift);
        added += e;
        store(weights + k * QUERIES + i, e);
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
    multiply<true>(p.O, block.columns, {keys.value + j * p.O, 1, p.O}, weights, QUERIES, sum,
                   QUERIES, n);
  }
  for (long i = 0; i < block.rows; i++) {
    const float by = total[i] == 0 ? 0.f : 1 / total[i];
    float* row = output + (start + i) * p.N * p.O;
    for (long o = 0; o < p.O; o++) row[o] = sum[o * QUERIES + i] * by;
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
void backward(const Problem& p, const Keys& keys, const float* query, const float* d_output,
              Statistics found, const float* delta, float* d_query, KeyGradients gradients,
              long start, float* memory) {
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
    std::memcpy(q_rows + i * H, query + (start + i) * p.N * p.H, sizeof(float) * p.H);
    std::memcpy(d_out_rows + i * O, d_output + (start + i) * p.N * p.O, sizeof(float) * p.O);
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
    float* row = d_query + (start + i) * p.N * p.H;
    for (long h = 0; h < p.H; h++) row[h] = d_q[h * QUERIES + i];
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
void attend_once(const Problem& p, long b, const float* query, const float* key, const float* value,
                 float* output, float* highest, float* log_total) {
  const uint8_t* seen = p.is_token ? p.is_token + (p.tokens > 1 ? b : 0) * p.S : nullptr;
  const long step = p.key_step();
  float *q = scratch(p.H + 2 * rounded_up(p.S)), *weights = q + p.H;
  int32_t* position = reinterpret_cast<int32_t*>(weights + rounded_up(p.S));
  for (long h = 0; h < p.H; h++) q[h] = query[h] * p.scale;
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
      const float* row = value + position[k] * step * p.O + o;
      for (long n = 0; n < columns; n++) sum[n] += load(row + n * W) * weights[k];
    }
    for (long n = 0; n < columns; n++) store(output + o + n * W, sum[n] * by);
  }
  *highest = top;
  *log_total = std::log(all);
}

// Writes the output and the statistics of all heads.
template <class Pool>
bool attend(Pool& pool, const Problem& p, const float* query, const float* key, const float* value,
            float* output, Statistics found) {
  const bool without_bounds = p.left < 0 && p.right < 0;
  if (p.T == 1 && without_bounds && p.H % W == 0 && p.O % W == 0)
    return in_parallel(pool, p.B * p.N, [=](long i) {
      const long b = i / p.N, first_key = p.first_key(b, i % p.N / (p.N / p.K));
      attend_once(p, b, query + i * p.H, key + first_key * p.H, value + first_key * p.O,
                  output + i * p.O, found.highest + i, found.log_total + i);
    });
  const long share = p.N / p.K, blocks = (p.T + QUERIES - 1) / QUERIES * share;
  // Each part of a key head's blocks copies the keys, so there are as few as keep the threads busy.
  const long heads = p.B * p.K, wanted = 3 * pool.num_threads();
  const long parts = std::min(blocks, std::max(1L, (wanted + heads - 1) / heads));
  return in_parallel(pool, heads * parts, [=](long i) {
    const long part = i % parts, head = i / parts % p.K, b = i / parts / p.K;
    const long first_key = p.first_key(b, head);
    float* memory = scratch(forward_memory(p) + p.S * (p.H + p.O + 1));
    const Keys keys = copied(p, key + first_key * p.H, value + first_key * p.O, b,
                             memory + forward_memory(p));
    // Neighbouring blocks go to different parts, because causal ones differ in their work.
    for (long block = part; block < blocks; block += parts) {
      const long n = head * share + block % share, row = (b * p.N + n) * p.T;
      const long first = b * p.T * p.N + n;
      forward(p, keys, query + first * p.H, output + first * p.O,
              {found.highest + row, found.log_total + row}, block / share * QUERIES, memory);
    }
  });
}

// Writes the gradients of all heads.
template <class Pool>
bool differentiate(Pool& pool, const Problem& p, const float* query, const float* key,
                   const float* value, const float* d_output, Statistics found, const float* delta,
                   float* d_query, float* d_key, float* d_value) {
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
      float* to_key = d_key + (first_key + s * p.K) * p.H;
      float* to_value = d_value + (first_key + s * p.K) * p.O;
      if (j < keys.number && keys.position[j] == s) {
        std::memcpy(to_key, gradients.key + j * H, sizeof(float) * p.H);
        std::memcpy(to_value, gradients.value + j++ * O, sizeof(float) * p.O);
      } else {
        std::fill(to_key, to_key + p.H, 0.f);
        std::fill(to_value, to_value + p.O, 0.f);
      }
    }
  });
}

using Array = ffi::Buffer<ffi::F32>;
using Mask = ffi::Buffer<ffi::PRED>;
using Result = ffi::ResultBuffer<ffi::F32>;

// The logical shapes have the heads first, [B, K, G, T, H] and [B, K, S, H] with N = K G; in memory
// they come behind T and S, except for keys and values that are `heads_first`. Without padding
// `is_token` has no elements.
Problem problem(const Array& query, const Array& key, const Array& value, const Mask& is_token,
                int64_t left, int64_t right, float scale) {
  const auto q = query.dimensions(), k = key.dimensions(), v = value.dimensions();
  const bool padded = is_token.element_count() > 0;
  const auto* tokens = padded ? reinterpret_cast<const uint8_t*>(is_token.typed_data()) : nullptr;
  return {q[0], q[3],  q[1] * q[2], q[4],  k[2],   k[1],
          v[3], left, right,       scale, tokens, (long)is_token.dimensions()[0]};
}

// Returns an error if the batches differ, which would be read beyond their ends.
template <class... Arrays>
ffi::Error checked(const Problem& p, const Arrays&... arrays) {
  if (((arrays.dimensions()[0] == p.B) && ...) && (p.tokens == 1 || p.tokens == p.B))
    return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "attention on a CPU: the batches differ");
}

ffi::Error ended(bool enough_memory) {
  if (enough_memory) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kResourceExhausted, "attention on a CPU: out of memory");
}

ffi::Error Forward(ffi::ThreadPool pool, Array query, Array key, Array value, Mask is_token,
                   Result output, Result highest, Result log_total, int64_t left, int64_t right,
                   float scale, bool heads_first) {
  Problem p = problem(query, key, value, is_token, left, right, scale);
  p.heads_first = heads_first;
  if (const auto error = checked(p, key, value); error.failure()) return error;
  return ended(attend(pool, p, query.typed_data(), key.typed_data(), value.typed_data(),
                      output->typed_data(), {highest->typed_data(), log_total->typed_data()}));
}

ffi::Error Backward(ffi::ThreadPool pool, Array query, Array key, Array value, Mask is_token,
                    Array d_output, Array highest, Array log_total, Array delta, Result d_query,
                    Result d_key, Result d_value, int64_t left, int64_t right, float scale) {
  const Problem p = problem(query, key, value, is_token, left, right, scale);
  if (const auto error = checked(p, key, value, d_output, highest, log_total, delta);
      error.failure())
    return error;
  return ended(differentiate(
      pool, p, query.typed_data(), key.typed_data(), value.typed_data(), d_output.typed_data(),
      {highest.typed_data(), log_total.typed_data()}, delta.typed_data(), d_query->typed_data(),
      d_key->typed_data(), d_value->typed_data()));
}

}  // namespace

// Arguments and results in the order of `Forward` and `Backward`.
#define ARGUMENTS \
  ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Array>().Arg<Array>().Arg<Array>().Arg<Mask>()
#define RESULTS                                        \
  Ret<Array>().Ret<Array>().Ret<Array>()               \
      .Attr<int64_t>("left").Attr<int64_t>("right").Attr<float>("scale")

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    attention_forward, Forward, ARGUMENTS.RESULTS.Attr<bool>("heads_first"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    attention_backward, Backward,
    ARGUMENTS.Arg<Array>().Arg<Array>().Arg<Array>().Arg<Array>().RESULTS);
