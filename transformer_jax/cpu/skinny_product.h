// The product of few rows with a weight matrix: y = x w, or y = x w^T.
//
// It should take no longer than reading w from memory once, whatever the number of rows. So the
// next part of w is prefetched while one part is multiplied: the processor alone does not load far
// enough ahead.
//
// The order of a sum depends neither on the number of rows nor on that of threads, so that a row
// has the same result alone and among others.
#ifndef TRANSFORMER_JAX_SKINNY_PRODUCT_H_
#define TRANSFORMER_JAX_SKINNY_PRODUCT_H_

#include <algorithm>
#include <cstring>

#include "threads.h"
#include "vectors.h"

namespace {

// The product of `depth` elements x with R rows and w with V vectors of columns is computed in
// registers.
#if defined(__AVX512F__)
constexpr int ROWS = 8, VECTORS = 3;
#else
constexpr int ROWS = 6, VECTORS = 2;
#endif
constexpr long BLOCK = 16;         // rows of w between two visits of an element of y
constexpr long COLUMNS = 1024;     // of w in a task: long contiguous reads
constexpr long WEIGHTS = 1 << 18;  // in a task of y = x w^T

struct Product {
  long rows, depth, columns;  // y is [rows, columns]
  const float* x;             // [rows, depth]
  float* y;
};

// x in groups of ROWS rows, [groups][depth][ROWS]: a step of the loop reads neighbours.
long groups_of(const Product& p) { return (p.rows + ROWS - 1) / ROWS; }

void pack(const Product& p, float* packed) {
  for (long m = 0; m < p.rows; m++)
    for (long k = 0; k < p.depth; k++)
      packed[(m / ROWS * p.depth + k) * ROWS + m % ROWS] = p.x[m * p.depth + k];
}

// sum [R][V W] += x [depth][ROWS] w [depth][V W]; prefetches the rows of w that follow.
template <int R, int V, bool PREFETCH, class E>
inline void add_in_registers(const float* x, const E* w, long w_row, float* sum, long sum_row,
                             long depth) {
  Floats total[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) total[r][v] = load(sum + r * sum_row + v * W);
#pragma GCC unroll 1
  for (long k = 0; k < depth; k++, x += ROWS, w += w_row) {
    Floats right[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      right[v] = load(w + v * W);
      if (PREFETCH) __builtin_prefetch(w + BLOCK * w_row + v * W);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) total[r][v] = fused(same(x[r]), right[v], total[r][v]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) store(sum + r * sum_row + v * W, total[r][v]);
}

// Does so for the rows from m on: R at a time, then half as many. The first rows prefetch w; it is
// in the cache of this core for the others.
template <int R, int V, class E>
inline void add_rows(const Product& p, long m, const float* packed, const E* w, float* sum,
                     long sum_row, long depth) {
  for (; m + R <= p.rows; m += R) {
    const float* x = packed + m / ROWS * ROWS * p.depth + m % ROWS;
    if (m == 0)
      add_in_registers<R, V, true>(x, w, p.columns, sum, sum_row, depth);
    else
      add_in_registers<R, V, false>(x, w, p.columns, sum + m * sum_row, sum_row, depth);
  }
  if constexpr (R > 1) add_rows<R / 2, V>(p, m, packed, w, sum, sum_row, depth);
}

// y = x w with w [depth][columns]; the columns are a multiple of W.
template <class Pool, class E>
bool multiply_by_weights(Pool& pool, const Product& p, const E* w) {
  const long share = (p.columns + pool.num_threads() - 1) / std::max<long>(1, pool.num_threads());
  const long width = std::min(COLUMNS, rounded_up(share));
  return in_parallel(pool, (p.columns + width - 1) / width, [=](long i) {
    const long first = i * width, columns = std::min(width, p.columns - first);
    const long sum_row = columns + W;  // not a power of two, so that rows have other cache lines
    const long packed_size = rounded_up(groups_of(p) * ROWS * p.depth);
    float *packed = scratch(packed_size + p.rows * sum_row), *sum = packed + packed_size;
    pack(p, packed);
    std::fill(sum, sum + p.rows * sum_row, 0.f);
    for (long k = 0; k < p.depth; k += BLOCK) {
      const long depth = std::min(BLOCK, p.depth - k);
      const float* x = packed + k * ROWS;
      const E* block = w + k * p.columns + first;
      long n = 0;
      for (; n + VECTORS * W <= columns; n += VECTORS * W)
        add_rows<ROWS, VECTORS>(p, 0, x, block + n, sum + n, sum_row, depth);
      for (; n < columns; n += W) add_rows<ROWS, 1>(p, 0, x, block + n, sum + n, sum_row, depth);
    }
    for (long m = 0; m < p.rows; m++)
      std::memcpy(p.y + m * p.columns + first, sum + m * sum_row, columns * sizeof(float));
  });
}

// y [R][C] = x [R][depth] w^T with w [C][depth]; prefetches the C rows of w that follow.
template <int R, int C, bool PREFETCH, class E>
inline void dot_in_registers(const Product& p, const float* x, const E* w, float* y) {
  Floats total[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) total[r][c] = Floats{};
#pragma GCC unroll 1
  for (long k = 0; k < p.depth; k += W) {
    Floats right[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) {
      right[c] = load(w + c * p.depth + k);
      if (PREFETCH) __builtin_prefetch(w + (C + c) * p.depth + k);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Floats left = load(x + r * p.depth + k);
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) total[r][c] = fused(left, right[c], total[r][c]);
    }
  }
  float lanes[R * C][W];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) store(lanes[r * C + c], total[r][c]);
#pragma GCC unroll 1
  for (int i = 0; i < R * C; i++) {
    float sum = 0;
    for (float lane : lanes[i]) sum += lane;
    y[i / C * p.columns + i % C] = sum;
  }
}

// Does so for the rows from m on, as `add_rows` does.
template <int R, int C, class E>
inline void dot_rows(const Product& p, long m, const E* w, float* y) {
  for (; m + R <= p.rows; m += R) {
    if (m == 0)
      dot_in_registers<R, C, true>(p, p.x, w, y);
    else
      dot_in_registers<R, C, false>(p, p.x + m * p.depth, w, y + m * p.columns);
  }
  if constexpr (R > 1) dot_rows<R / 2, C>(p, m, w, y);
}

// y = x w^T with w [columns][depth]; the depth is a multiple of W.
template <class Pool, class E>
bool multiply_by_transposed_weights(Pool& pool, const Product& p, const E* w) {
  const long width = std::max<long>(VECTORS, WEIGHTS / p.depth / VECTORS * VECTORS);
  return in_parallel(pool, (p.columns + width - 1) / width, [=](long i) {
    const long last = std::min((i + 1) * width, p.columns);
    long n = i * width;
    for (; n + VECTORS <= last; n += VECTORS)
      dot_rows<ROWS, VECTORS>(p, 0, w + n * p.depth, p.y + n);
    for (; n < last; n++) dot_rows<ROWS, 1>(p, 0, w + n * p.depth, p.y + n);
  });
}

}  // namespace

#endif  // TRANSFORMER_JAX_SKINNY_PRODUCT_H_
