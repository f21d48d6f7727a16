// Vectors of floats, bfloat16, and small matrix products.
#ifndef TRANSFORMER_JAX_VECTORS_H_
#define TRANSFORMER_JAX_VECTORS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// W floats fit a vector register. A product computes M rows of N vectors in registers: with 32
// registers 6 x 4, with 16 registers 6 x 2.
#if defined(__AVX512F__)
constexpr int W = 16, M = 6, N = 4;
#else
constexpr int W = 8, M = 6, N = 2;
#endif
constexpr float INF = std::numeric_limits<float>::infinity();

// Vectors in registers, and the same ones at any address of memory. GCC would write an array of the
// latter to memory whenever an element changes.
typedef float Floats __attribute__((vector_size(W * 4)));
typedef int32_t Ints __attribute__((vector_size(W * 4)));
typedef uint32_t Words __attribute__((vector_size(W * 4)));
typedef float StoredFloats __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef int32_t StoredInts __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef uint8_t Bytes __attribute__((vector_size(W), aligned(1), may_alias));
typedef uint16_t Shorts __attribute__((vector_size(W * 2), aligned(2), may_alias));

// A bfloat16 is the upper half of a float.
struct BFloat16 {
  uint16_t bits;
};

inline Floats load(const float* from) { return *reinterpret_cast<const StoredFloats*>(from); }
inline Ints load(const int32_t* from) { return *reinterpret_cast<const StoredInts*>(from); }
inline Floats load(const BFloat16* from) {
  const Shorts upper = *reinterpret_cast<const Shorts*>(from);
  return reinterpret_cast<Floats>(__builtin_convertvector(upper, Ints) << 16);
}
inline void store(float* to, Floats x) { *reinterpret_cast<StoredFloats*>(to) = x; }
// Rounds to the nearest bfloat16s, the upper halves of the result. Some NaN become numbers.
inline Ints rounded(Floats x) {
  const Words bits = reinterpret_cast<Words>(x);
  return reinterpret_cast<Ints>(bits + 0x7fff + (bits >> 16 & 1));
}
// Writes the upper halves.
inline void put_row(BFloat16* to, Ints bits) {
  *reinterpret_cast<Shorts*>(to) = __builtin_convertvector(bits >> 16 & 0xffff, Shorts);
}
inline void store(BFloat16* to, Floats x) {
  put_row(to, x == x ? rounded(x) : reinterpret_cast<Ints>(x) | 1 << 22);
}
// Compilers compute x + 0, which turns -0 into 0, and leave x - 0 out.
inline Floats same(float x) { return x - Floats{}; }

// x y + sum, rounded once where the processor can. Compilers fuse some products with their sums and
// leave others (GCC for AMD's processors), and a row would differ with the number of rows.
inline Floats fused(Floats x, Floats y, Floats sum) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)sum);
#elif defined(__x86_64__) && defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)sum);
#else
  return x * y + sum;
#endif
}

inline float read(float x) { return x; }
inline float read(BFloat16 x) {
  const uint32_t bits = (uint32_t)x.bits << 16;
  float found;
  std::memcpy(&found, &bits, sizeof found);
  return found;
}

// Rounds to the nearest, and to the even one of two.
inline void write(float* to, float x) { *to = x; }
inline void write(BFloat16* to, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  to->bits = x == x ? nearest : bits >> 16 | 0x40;
}

template <class From, class To>
inline void copy(const From* from, long number, To* to) {
  for (long i = 0; i < number; i++) write(to + i, read(from[i]));
}

// Returns e^x, 0 below the least normal number, to 2 units in the last place. After Cephes
// (https://www.netlib.org/cephes): x = n log 2 + r, and a polynomial for e^r.
inline Floats exponential(Floats x) {
  const Floats least = same(-87.33f);
  const float round = 12582912.f;  // adding 1.5 * 2^23 rounds to a whole number
  Floats n = (least > x ? least : x) * 1.44269504f + round;
  const Words exponent = reinterpret_cast<Words>(n) << 23;
  n -= round;
  const Floats r = (least > x ? least : x) - n * 0.693359375f + n * 2.12194440e-4f;
  Floats p = same(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Floats found = reinterpret_cast<Floats>(reinterpret_cast<Words>(p) + exponent);
  return least > x ? Floats{} : x == x ? found : x;
}

// Exchanges bit B (1, 2, 4, ...) of an element's lane and of its row, for two rows that differ in
// it. With lanes that are not constants, compilers would move one element at a time.
template <int B, int... LANE>
inline void exchange(Floats& lower, Floats& upper, std::integer_sequence<int, LANE...>) {
  const Floats x = lower, y = upper;
#if defined(__clang__)
  lower = __builtin_shufflevector(x, y, (LANE & B ? W + LANE - B : LANE)...);
  upper = __builtin_shufflevector(x, y, (LANE & B ? W + LANE : LANE + B)...);
#else
  lower = __builtin_shuffle(x, y, Ints{(LANE & B ? W + LANE - B : LANE)...});
  upper = __builtin_shuffle(x, y, Ints{(LANE & B ? W + LANE : LANE + B)...});
#endif
}

// Transposes W vectors of W elements, by the bits of their numbers from B on.
template <int B = 1>
inline void transpose(Floats* rows) {
#pragma GCC unroll 16
  for (int i = 0; i < W; i++)
    if (!(i & B)) exchange<B>(rows[i], rows[i + B], std::make_integer_sequence<int, W>());
  if constexpr (2 * B < W) transpose<2 * B>(rows);
}

// Writes the transpose of a matrix, times `scale`: the element (r, c) at from[r * row + c] goes to
// to[c * column + r].
template <class From, class To>
inline void transpose(const From* from, long rows, long columns, long row, float scale, To* to,
                      long column) {
  for (long r = 0; r < rows; r += W)
    for (long c = 0; c < columns; c += W) {
      const From* corner = from + r * row + c;
      To* out = to + c * column + r;
      if (rows - r >= W && columns - c >= W) {
        Floats square[W];
#pragma GCC unroll 16
        for (int i = 0; i < W; i++) square[i] = load(corner + i * row) * scale;
        transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < W; i++) store(out + i * column, square[i]);
      } else {
        for (long j = 0; j < std::min<long>(W, columns - c); j++)
          for (long i = 0; i < std::min<long>(W, rows - r); i++)
            write(out + j * column + i, read(corner[i * row + j]) * scale);
      }
    }
}

inline float sum_of(Floats x) {
  float lanes[W];
  store(lanes, x);
  for (int w = W / 2; w > 0; w /= 2)
    for (int i = 0; i < w; i++) lanes[i] += lanes[i + w];
  return lanes[0];
}

template <class E>
inline float dot(const E* x, const E* y, long number) {
  Floats sum{};
  long i = 0;
  for (; i + W <= number; i += W) sum = fused(load(x + i), load(y + i), sum);
  float found = sum_of(sum);
  for (; i < number; i++) found += read(x[i]) * read(y[i]);
  return found;
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
      for (int v = 0; v < V; v++) sum[r][v] = fused(left, right[v], sum[r][v]);
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

long rounded_up(long x, long to = W) { return (x + to - 1) / to * to; }

}  // namespace

#endif  // TRANSFORMER_JAX_VECTORS_H_
