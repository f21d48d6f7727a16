// Products of bfloat16 matrices by AMX, whose registers are tiles of 16 rows of 64 bytes, and the
// layouts of their factors.
#ifndef TRANSFORMER_JAX_ATTENTION_TILES_H_
#define TRANSFORMER_JAX_ATTENTION_TILES_H_

#include <algorithm>

#include "attention_problem.h"
#include "vectors.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#define TRANSFORMER_JAX_TILES

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr long TILE = 16;   // rows and columns of a tile of floats
constexpr long DEPTH = 32;  // bfloat16s in a row of a tile

// Whether Linux lets this process use tiles; it has to be asked once.
bool tiles_are_allowed() {
  constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  static const bool allowed =
      syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
  return allowed;
}

// While it exists, this thread has eight whole tiles.
class Tiles {
 public:
  Tiles() {
    struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE};
    } layout;
    _tile_loadconfig(&layout);
  }
  ~Tiles() { _tile_release(); }
};

// c = a b, or c += a b, for R x V tiles of c. Element (k, j) of b is
// b[k / 2 * b_row + 2 * j + k % 2].
template <int R, int V, bool ADD>
inline void multiply_in_tiles(const BFloat16* a, long a_row, const BFloat16* b, long b_row,
                              float* c, long c_row, long depth) {
  float* below = c + TILE * c_row;
  if constexpr (ADD) {
    _tile_loadd(0, c, 4 * c_row);
    if constexpr (V > 1) _tile_loadd(1, c + TILE, 4 * c_row);
    if constexpr (R > 1) _tile_loadd(2, below, 4 * c_row);
    if constexpr (R > 1 && V > 1) _tile_loadd(3, below + TILE, 4 * c_row);
  } else {
    _tile_zero(0);
    if constexpr (V > 1) _tile_zero(1);
    if constexpr (R > 1) _tile_zero(2);
    if constexpr (R > 1 && V > 1) _tile_zero(3);
  }
  for (long k = 0; k < depth; k += DEPTH, a += DEPTH, b += DEPTH / 2 * b_row) {
    _tile_loadd(4, a, 2 * a_row);
    _tile_loadd(6, b, 2 * b_row);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (V > 1) {
      _tile_loadd(7, b + 2 * TILE, 2 * b_row);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (R > 1) {
      _tile_loadd(5, a + TILE * a_row, 2 * a_row);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (R > 1 && V > 1) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, 4 * c_row);
  if constexpr (V > 1) _tile_stored(1, c + TILE, 4 * c_row);
  if constexpr (R > 1) _tile_stored(2, below, 4 * c_row);
  if constexpr (R > 1 && V > 1) _tile_stored(3, below + TILE, 4 * c_row);
}

// Does so for any number of rows and columns of c, rounded up to multiples of TILE, and a depth
// that is a multiple of DEPTH.
template <bool ADD>
void multiply_by_tiles(long rows, long columns, const BFloat16* a, long a_row, const BFloat16* b,
                       long b_row, float* c, long c_row, long depth) {
  for (; columns > 0; columns -= 2 * TILE, b += 4 * TILE, c += 2 * TILE)
    for (long r = 0; r < rows; r += 2 * TILE) {
      const BFloat16* from = a + r * a_row;
      float* to = c + r * c_row;
      const bool two = rows - r > TILE;
      if (columns > TILE)
        two ? multiply_in_tiles<2, 2, ADD>(from, a_row, b, b_row, to, c_row, depth)
            : multiply_in_tiles<1, 2, ADD>(from, a_row, b, b_row, to, c_row, depth);
      else
        two ? multiply_in_tiles<2, 1, ADD>(from, a_row, b, b_row, to, c_row, depth)
            : multiply_in_tiles<1, 1, ADD>(from, a_row, b, b_row, to, c_row, depth);
    }
}

// The most keys of a head, with those that a product reads behind the last.
long padded_keys(const Problem& p) { return rounded_up(p.S, DEPTH) + DEPTH; }

// Copies the rows of a head's keys or values that padding leaves, with zeros beside and below.
void copy_rows(const Problem& p, const Seen& seen, const BFloat16* from, long width, long columns,
               BFloat16* to) {
  std::fill(to, to + (seen.number + DEPTH) * columns, BFloat16{});
  for (long j = 0; j < seen.number; j++)
    copy(from + seen.position[j] * p.key_step() * width, width, to + j * columns);
}

// Copies them as columns, with zeros beside and below.
void copy_columns(const Problem& p, const Seen& seen, const BFloat16* from, long width, long rows,
                  long columns, BFloat16* to) {
  for (long w = 0; w < rows; w++) {
    BFloat16* row = to + w * columns;
    std::fill(row + (w < width ? seen.number : 0), row + seen.number + DEPTH, BFloat16{});
  }
  for (long j = 0; j < seen.number; j++) {
    const BFloat16* row = from + seen.position[j] * p.key_step() * width;
    for (long w = 0; w < width; w++) to[w * columns + j] = row[w];
  }
}

// Writes an element of a right factor whose rows have so many columns: two of a column are side by
// side.
inline void put(BFloat16* to, long columns, long row, long column, BFloat16 x) {
  to[row / 2 * 2 * columns + 2 * column + row % 2] = x;
}

// Writes rounded numbers as the part of a row of a right factor; even rows come before odd ones.
inline void put_pairs(BFloat16* to, long columns, long row, long column, Ints bits) {
  StoredInts* pairs = reinterpret_cast<StoredInts*>(to + row / 2 * 2 * columns + 2 * column);
  *pairs = row % 2 ? (bits & ~0xffff) | *pairs : bits >> 16 & 0xffff;
}

// Sets the rows of a right factor to zero from one on until another, which is even.
inline void clear_rows(BFloat16* to, long columns, long from, long until) {
  std::fill(to + (from + 1) / 2 * 2 * columns, to + until * columns, BFloat16{});
}

}  // namespace

#endif

#endif  // TRANSFORMER_JAX_ATTENTION_TILES_H_
