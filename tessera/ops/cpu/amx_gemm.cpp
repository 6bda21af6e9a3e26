// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/amx_gemm.h"

#include "tessera/ops/cpu/amx_tiles.h"
#include "tessera/ops/cpu/vector_finish.h"
#include "tessera/ops/cpu/vector_turns.h"

namespace tessera::ops::amx {
namespace {

using vectors::Rows;
using vectors::Turns;
using Epilogue = ops::Epilogue<uint16_t>;

constexpr int64_t kRows = 32, kColumns = 32;  // of a block of sums in tiles

// What of a packed factor stays in the L2 cache while rows pass by, in elements.
constexpr int64_t kCacheElements = 384 * 1024;

int64_t column_chunk(int64_t padded_k, int64_t columns) {
  const int64_t most = kCacheElements / padded_k / kColumns * kColumns;
  return vectors::equal_pieces(columns, most < kColumns ? kColumns : most, kColumns);
}

struct alignas(64) Block {
  float c[kRows * kColumns];
};

// What becomes of a row of sums.
enum class Then { kNothing, kJoin, kStore, kBias, kBiasResidual, kBiasGelu, kSlope, kAny };

// The sums of a block on their way, row by row.
struct Sums {
  Then then = Then::kNothing;
  int64_t rows = 0;                         // that are left
  const float* c = nullptr;                 // the next of them
  float* waiting = nullptr;                 // those of the cuts before, which they join
  int64_t at = 0, column = 0, columns = 0;  // in the result, which has so many columns
};

Then then_of(const Epilogue& e, int64_t columns) {
  const bool lines_whole = reinterpret_cast<uintptr_t>(e.linear) % 64 == 0 && columns % 32 == 0;
  if (e.slope_of != nullptr) {
    return e.bias == nullptr && e.linear == nullptr && e.residual == nullptr ? Then::kSlope : Then::kAny;
  }
  if (e.bias == nullptr) return e.linear == nullptr && e.residual == nullptr ? Then::kStore : Then::kAny;
  if (e.linear != nullptr) return e.residual == nullptr && lines_whole ? Then::kBiasGelu : Then::kAny;
  return e.residual != nullptr ? Then::kBiasResidual : Then::kBias;
}

inline __m512 low_half(__m512i row) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(row)), 16));
}
inline __m512 high_half(__m512i row) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(row, 1)), 16));
}
inline __m512i narrow(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// What becomes of 32 sums of a row, which begin at element `at` of the result.
template <Then then>
inline void finish_row(const Epilogue& e, __m512 low, __m512 high, const __m512 (&bias)[2], int64_t at,
                       int64_t column) {
  if constexpr (then == Then::kAny) {
    vectors::finish(e, low, at, column, vectors::AllLanes());
    vectors::finish(e, high, at + 16, column + 16, vectors::AllLanes());
    return;
  }
  if constexpr (then == Then::kBias || then == Then::kBiasResidual || then == Then::kBiasGelu) {
    low = _mm512_add_ps(low, bias[0]);
    high = _mm512_add_ps(high, bias[1]);
  }
  if constexpr (then == Then::kBiasGelu) {
    const __m512i linear = narrow(low, high);
    // Past the caches: it is read in backward. As a second stream of stores to lines that lie rows apart it
    // would keep the first one waiting (a third of the product's time).
    _mm512_stream_si512(reinterpret_cast<__m512i*>(e.linear + at), linear);
    low = vectors::gelu_for(low_half(linear), uint16_t());
    high = vectors::gelu_for(high_half(linear), uint16_t());
  }
  if constexpr (then == Then::kSlope) {
    low = _mm512_mul_ps(low, vectors::gelu_derivative_for(vectors::load(e.slope_of + at), uint16_t()));
    high = _mm512_mul_ps(high, vectors::gelu_derivative_for(vectors::load(e.slope_of + at + 16), uint16_t()));
  }
  if constexpr (then == Then::kBiasResidual) {
    low = _mm512_add_ps(low, vectors::load(e.residual + at));
    high = _mm512_add_ps(high, vectors::load(e.residual + at + 16));
  }
  _mm512_storeu_si512(e.out + at, narrow(low, high));
}

// What will be read soon: so many lines at each step of a product, in rows of so many steps.
struct Ahead {
  const uint16_t* lines = nullptr;
  int64_t a_step = 0, left_of_row = 0, steps = 0, next_row = 0;
};

// 32 x 32 sums `c` over `steps` steps, of left tiles in the L1 cache and right ones whose second half is
// `right` on; meanwhile those of `sums`, all of which are read before c is written: it may be what they are
// in.
template <Then then>
[[gnu::noinline]] void product_beside(const Left& left, const uint16_t* w, int64_t right, int64_t steps,
                                      float* c, const Sums& sums, const Epilogue& epilogue, Ahead& ahead) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const Epilogue e = epilogue;
  const float* s = sums.c;
  float* waiting = sums.waiting;
  int64_t at = sums.at, due = 0;
  const int64_t column = sums.column, columns = sums.columns, rows = sums.rows;
  const uint16_t* a = left.data;
  const int64_t row = 2 * left.row, lower = left.lower, step = left.step, asked = ahead.a_step;
  const uint16_t* lines = ahead.lines;
  __m512 bias[2] = {};
  if constexpr (then == Then::kBias || then == Then::kBiasResidual || then == Then::kBiasGelu) {
    bias[0] = vectors::load(e.bias + column);
    bias[1] = vectors::load(e.bias + column + 16);
  }
  for (int64_t k = 0; k < steps; ++k, a += step, w += kTile) {
    _tile_loadd(4, a, row);
    _tile_stream_loadd(6, w, 64);
    _tile_loadd(5, a + lower, row);
    _tile_stream_loadd(7, w + right, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    for (int64_t i = 0; i < asked; ++i, lines += 32) __builtin_prefetch(lines, 0, 2);
    if (--ahead.left_of_row == 0) {
      ahead.left_of_row = ahead.steps;
      lines += ahead.next_row;
    }
    if constexpr (then == Then::kNothing) continue;
    for (due += rows; due >= steps; due -= steps, s += kColumns) {
      __m512 low = _mm512_load_ps(s), high = _mm512_load_ps(s + 16);
      if (waiting != nullptr) {
        low = _mm512_add_ps(low, _mm512_load_ps(waiting));
        high = _mm512_add_ps(high, _mm512_load_ps(waiting + 16));
        if constexpr (then == Then::kJoin) {
          _mm512_store_ps(waiting, low);
          _mm512_store_ps(waiting + 16, high);
        }
        waiting += kColumns;
      }
      if constexpr (then != Then::kJoin) {
        finish_row<then>(e, low, high, bias, at, column);
        at += columns;
      }
    }
  }
  ahead.lines = lines;
  _tile_stored(0, c, kColumns * 4);
  _tile_stored(1, c + 16, kColumns * 4);
  _tile_stored(2, c + 16 * kColumns, kColumns * 4);
  _tile_stored(3, c + 16 * kColumns + 16, kColumns * 4);
}

using Product = void (*)(const Left& left, const uint16_t* w, int64_t right, int64_t steps, float* c,
                         const Sums& sums, const Epilogue& epilogue, Ahead& ahead);
constexpr Product kProducts[] = {product_beside<Then::kNothing>,      product_beside<Then::kJoin>,
                                 product_beside<Then::kStore>,        product_beside<Then::kBias>,
                                 product_beside<Then::kBiasResidual>, product_beside<Then::kBiasGelu>,
                                 product_beside<Then::kSlope>,        product_beside<Then::kAny>};

// Rows of sums whose columns are not all there, or after which no product comes.
void finish_now(Sums& s, const Epilogue& e) {
  for (; s.rows > 0; --s.rows, s.at += s.columns, s.c += kColumns) {
    for (int64_t half = 0; half < kColumns; half += 16) {
      const int64_t left = s.columns - s.column - half;
      __m512 c = _mm512_load_ps(s.c + half);
      if (s.waiting != nullptr) c = _mm512_add_ps(c, _mm512_load_ps(s.waiting + half));
      if (s.then == Then::kJoin) {
        _mm512_store_ps(s.waiting + half, c);
      } else if (left > 0) {
        vectors::finish(e, c, s.at + half, s.column + half, vectors::first_lanes(left));
      }
    }
    if (s.waiting != nullptr) s.waiting += kColumns;
  }
  s.then = Then::kNothing;
}

// Up to 32 rows of a product and a chunk of its columns.
struct Band {
  int64_t column = 0, stop = 0;  // of the chunk
  int64_t row = 0, rows = 0;     // no rows: there is no further one
};

// A thread's bands, one after the other: chunks of columns, in them the rows that it takes.
class Bands {
 public:
  Bands(const Turns& turns, int64_t rows, int64_t columns, int64_t chunk)
      : turns_(turns), rows_(rows), columns_(columns), chunk_(chunk) {
    band_.stop = min_of(chunk, columns);
  }
  Band next() {
    band_.row += kRows;
    while (band_.row >= some_.last) {
      some_ = vectors::take_rows(turns_, index_, rows_, kRows);
      band_.row = some_.first;
      if (some_.first < some_.last) break;
      some_ = {0, 0};
      band_.column = band_.stop;
      if (band_.column >= columns_) return {};
      band_.stop = min_of(band_.column + chunk_, columns_);
      ++index_;
    }
    band_.rows = min_of(some_.last - band_.row, kRows);
    return band_;
  }
  // The row at which the next band begins, unless another thread takes it; `rows`: there is none.
  int64_t likely_next() const {
    if (band_.row + kRows < some_.last) return band_.row + kRows;
    const int64_t* taken = turns_.taken + index_;
    const int64_t first = __atomic_load_n(taken, __ATOMIC_RELAXED);
    if (first < rows_ || band_.stop >= columns_) return min_of(first, rows_);
    return __atomic_load_n(taken + 1, __ATOMIC_RELAXED);
  }

 private:
  const Turns& turns_;
  int64_t rows_, columns_, chunk_;
  Rows some_{0, 0};
  int64_t index_ = 0;  // of the chunk
  Band band_;
};

// What the bands of a product share.
struct Whole {
  int64_t steps, columns;
  const uint16_t* packed;  // the first tile on the right, of column 0
  int64_t panel;           // elements from 16 columns to the next
  bool first, last;        // of the cuts of k
  Block* waiting;          // one for each 32 rows and 32 columns of the result
};

struct Beside {
  const Epilogue* epilogue = nullptr;
  Then then = Then::kStore;  // as the epilogue says
  Sums sums;
  Ahead ahead;
};

void multiply_band(const Whole& s, const Band& band, const Left& left, Block& own, Beside& beside) {
  const bool to_waiting = s.first && !s.last;
  const int64_t across = (s.columns + kColumns - 1) / kColumns;
  Sums& sums = beside.sums;
  for (int64_t column = band.column; column < band.stop; column += kColumns) {
    const int64_t block = band.row / kRows * across + column / kColumns;
    float* waiting = s.waiting != nullptr ? s.waiting[block].c : nullptr;
    float* c = to_waiting ? waiting : own.c;
    kProducts[static_cast<int>(sums.then)](left, s.packed + column / 16 * s.panel, s.panel, s.steps, c, sums,
                                           *beside.epilogue, beside.ahead);
    sums.then = Then::kNothing;
    if (to_waiting) continue;
    sums = {s.last ? beside.then : Then::kJoin, band.rows, c,        s.first ? nullptr : waiting,
            band.row * s.columns + column,      column,    s.columns};
    if (s.columns - column < kColumns) finish_now(sums, *beside.epilogue);
  }
}

// The left rows of one band, and how they lie in memory: rows of so many lines, so many elements apart.
struct Lines {
  const uint16_t* first;
  int64_t rows, of_row, row_step;
};

Ahead ahead_of(const Lines& lines, int64_t steps) {
  const int64_t a_step = (lines.rows * lines.of_row + steps - 1) / steps;
  const int64_t steps_of_row = (lines.of_row + a_step - 1) / a_step;
  return {lines.first, a_step, steps_of_row, steps_of_row, lines.row_step - steps_of_row * a_step * 32};
}

// A thread's share of a product. left_of(band): its left rows; lines_of(row): those of the band from there
// on.
template <typename LeftOf, typename LinesOf>
void multiply_bands(const Whole& s, int64_t rows, const Epilogue& epilogue, const Turns& turns,
                    const LeftOf& left_of, const LinesOf& lines_of) {
  const Tiles tiles;
  Block own;
  Beside beside{&epilogue, then_of(epilogue, s.columns), {}, {}};
  Bands bands(turns, rows, s.columns, column_chunk(s.steps * kStep, s.columns));
  for (Band band = bands.next(); band.rows > 0; band = bands.next()) {
    const int64_t steps = (band.stop - band.column + kColumns - 1) / kColumns * s.steps;
    const int64_t next = bands.likely_next();
    beside.ahead = next < rows ? ahead_of(lines_of(next), steps) : Ahead{};
    multiply_band(s, band, left_of(band), own, beside);
  }
  finish_now(beside.sums, epilogue);
  _mm_sfence();  // for what went past the caches
}

}  // namespace

void Gemm::multiply_cut(const uint16_t* a, int64_t rows, const Cut& cut, const uint16_t* packed,
                        int64_t columns, const Epilogue& epilogue, float* sums, const Turns& turns) {
  const int64_t k = cut.of, padded_k = padded(cut.size);
  const bool first = cut.begin == 0, last = cut.begin + cut.size == k;
  const Whole whole{padded_k / kStep,
                    columns,
                    packed + cut.begin * 16,
                    16 * padded(k),
                    first,
                    last,
                    first && last ? nullptr : reinterpret_cast<Block*>(sums)};
  // Rows so far apart meet in few sets of the L1 cache.
  const bool collide = k % 1024 == 0;
  const vectors::Buffer<Block> memory((padded_k + 63) / 64);
  uint16_t* copy = reinterpret_cast<uint16_t*>(memory.data());
  const auto left_of = [&](const Band& band) -> Left {
    const uint16_t* left = a + band.row * k + cut.begin;
    if (!collide && band.rows == kRows && cut.size == padded_k) return left_rows(left, k);
    return copy_rows(left, k, band.rows, cut.size, copy);
  };
  const auto lines_of = [&](int64_t row) -> Lines {
    return {a + row * k + cut.begin, kRows, whole.steps, k};
  };
  multiply_bands(whole, rows, epilogue, turns, left_of, lines_of);
}

// Slabs of k and groups of rows, as rows of w lie pages apart: what a group has of a slab stays in the
// caches.
void Gemm::pack_left(const uint16_t* w, int64_t w_columns, int64_t rows, int64_t k_size, int64_t begin,
                     int64_t end, uint16_t* packed, float* sums) {
  constexpr int64_t kSlab = 4 * kStep, kGroup = 256;
  const int64_t last = min_of(end * kRows, rows), panel = kRows * padded(k_size);
  for (int64_t group = begin * kRows; group < last; group += kGroup) {
    for (int64_t slab = 0; slab < k_size; slab += kSlab) {
      for (int64_t row = group; row < min_of(group + kGroup, last); row += 16) {
        const __mmask16 lanes = vectors::first_lanes(rows - row);
        __m512 sum = vectors::load(sums + row, lanes);
        uint16_t* out = packed + row / kRows * panel + row % kRows / 16 * kTile + slab * kRows;
        for (int64_t k = slab; k < min_of(slab + kSlab, k_size); k += kStep, out += kStepElements) {
          __m512i r[16];
          for (int64_t i = 0; row % kRows == 0 && i < min_of(kStep, k_size - k - kSlab); ++i) {
            __builtin_prefetch(w + (k + kSlab + i) * w_columns + row, 0, 2);
          }
          interleave(w + k * w_columns + row, w_columns, k_size - k, lanes, r, &sum);
          transpose(r);
          store_tile(r, out);
        }
        vectors::store(sums + row, lanes, sum);
      }
    }
  }
}

void Gemm::multiply_packed(const uint16_t* left, int64_t rows, int64_t k, const uint16_t* packed,
                           int64_t columns, const Epilogue& epilogue, const PartialSums& piece,
                           const Turns& turns) {
  const int64_t padded_k = padded(k);
  const Whole whole{padded_k / kStep,
                    columns,
                    packed,
                    16 * padded_k,
                    piece.first,
                    piece.last,
                    piece.first && piece.last ? nullptr : reinterpret_cast<Block*>(piece.sums)};
  const auto left_of = [&](const Band& band) -> Left {
    return {left + band.row * padded_k, 32, kTile, kStepElements};
  };
  const auto lines_of = [&](int64_t row) -> Lines { return {left + row * padded_k, 1, padded_k, 0}; };
  multiply_bands(whole, rows, epilogue, turns, left_of, lines_of);
}

double Gemm::resident_products(long turns) {
  alignas(64) uint16_t numbers[4 * kTile];
  uint32_t state = 1;
  for (uint16_t& number : numbers) {  // signs and mantissas at random, magnitudes from 1/8 to 2
    state = state * 1664525U + 1013904223U;
    number =
        static_cast<uint16_t>((state >> 31 << 15) | (124U + (state >> 28) % 4) << 7 | (state >> 21) % 128);
  }
  const Tiles tiles;
  asm volatile("" : : "r"(numbers) : "memory");  // g++ 12 does not see that a tile load reads memory
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, numbers, 64);
  _tile_loadd(5, numbers + kTile, 64);
  _tile_loadd(6, numbers + 2 * kTile, 64);
  _tile_loadd(7, numbers + 3 * kTile, 64);
  for (long i = 0; i < turns; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return 4.0 * 2 * 16 * 16 * 32 * static_cast<double>(turns);
}

}  // namespace tessera::ops::amx
