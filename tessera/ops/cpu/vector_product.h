// SPDX-License-Identifier: Apache-2.0
// Products of small matrices in registers, for factors of fp32 and of bf16 alike: both are words of 32 bits,
// a number of fp32 or two of bf16 that are neighbours along the sum. Word: float or uint16_t, for these.
// Elements in memory are of the same type, or bf16 for words of fp32. Private to kernels; like vectors.h
// without any standard header.
#pragma once

#include "tessera/ops/cpu/vector_math.h"

namespace tessera::ops::vectors {
namespace {

template <typename Word>
constexpr int64_t kPerWord = 4 / sizeof(Word);

/// Words that hold `count` elements.
template <typename Word>
constexpr int64_t words(int64_t count) {
  return (count + kPerWord<Word> - 1) / kPerWord<Word>;
}

/// Columns of a factor on the right: whole vectors.
inline int64_t lanes(int64_t count) { return (count + 15) / 16 * 16; }

inline Floats multiply_add(const float*, Floats a, Floats b, Floats sum) { return fmadd(a, b, sum); }

#if defined(__AVX512BF16__)
inline Floats multiply_add(const uint16_t*, Floats a, Floats b, Floats sum) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// Up to 16 words of so many elements, then zeros.
inline Words load_pairs(const uint16_t* p, int64_t elements) {
  return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint64_t{1} << min_of(elements, 32)) - 1), p);
}
// Elements of a row beside those of the next, or beside zeros if that is null.
inline Words pair(const uint16_t* row, const uint16_t* next, Mask mask) {
  const Words even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row));
  const Words odd =
      next != nullptr ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, next)) : no_words();
  return _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
}
#endif

// The words of a factor on the left: (row i, k) lies at data + i * kRow + k * step. That kRow is a constant
// spares the registers that the addresses of many rows would take.
struct Left {
  const float* data;
  int64_t step;
};

// Word k of 16 columns on the right: at data + k * row; `size` words are summed over.
struct Right {
  const float* data;
  int64_t row, size;
};

struct Result {
  float* data;
  int64_t row;
  bool add;  // to what is there
};

// kRows x 16 kVectors sums. Each is added up word after word, so how a product is cut into these is not seen
// in its numbers.
template <typename Word, int64_t kRow, int kRows, int kVectors>
inline void sums_of(const Left& a, const Right& b, const Result& c) {
  Floats sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      sums[i][j] = c.add ? load(c.data + i * c.row + 16 * j) : zeros();
    }
  }
  const float *left = a.data, *right = b.data;
  for (int64_t k = 0; k < b.size; ++k, left += a.step, right += b.row) {
    Floats columns[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) columns[j] = load(right + 16 * j);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Floats row = broadcast(left[i * kRow]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        sums[i][j] = multiply_add(static_cast<const Word*>(nullptr), row, columns[j], sums[i][j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) store(c.data + i * c.row + 16 * j, sums[i][j]);
  }
}

template <typename Word, int64_t kRow, int kRows, int kVectors>
inline void some_rows(int64_t rows, const Left& a, const Right& b, const Result& c) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return some_rows<Word, kRow, kRows - 1, kVectors>(rows, a, b, c);
  }
  sums_of<Word, kRow, kRows, kVectors>(a, b, c);
}

// Vectors of sums in a row that leave registers for several rows.
constexpr int64_t kMostVectors = CompiledFor::kRegisters == 32 ? 4 : 1;

// As many rows at a time as registers hold the sums of, in parts of nearly one size.
template <typename Word, int64_t kRow, int kVectors>
inline void some_columns(int64_t rows, const Left& a, const Right& b, const Result& c) {
  constexpr int kMost = kMostVectors == 1 ? 6
                        : kVectors == 4   ? 6
                        : kVectors == 3   ? 8
                        : kVectors == 2   ? 12
                                          : 14;
  const int64_t parts = (rows + kMost - 1) / kMost;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = rows * part / parts, end = rows * (part + 1) / parts;
    some_rows<Word, kRow, kMost, kVectors>(end - begin, {a.data + begin * kRow, a.step}, b,
                                           {c.data + begin * c.row, c.row, c.add});
  }
}

// c [rows, columns] = a b; `columns`: a multiple of 16.
template <typename Word, int64_t kRow>
inline void product(int64_t rows, int64_t columns, const Left& a, const Right& b, const Result& c) {
  const int64_t vectors = columns / 16, parts = (vectors + kMostVectors - 1) / kMostVectors;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = vectors * part / parts, end = vectors * (part + 1) / parts;
    const Right some = {b.data + 16 * begin, b.row, b.size};
    const Result into = {c.data + 16 * begin, c.row, c.add};
    if constexpr (kMostVectors == 1) {
      some_columns<Word, kRow, 1>(rows, a, some, into);
    } else {
      switch (end - begin) {
        case 1:
          some_columns<Word, kRow, 1>(rows, a, some, into);
          break;
        case 2:
          some_columns<Word, kRow, 2>(rows, a, some, into);
          break;
        case 3:
          some_columns<Word, kRow, 3>(rows, a, some, into);
          break;
        default:
          some_columns<Word, kRow, 4>(rows, a, some, into);
      }
    }
  }
}

// Up to 16 words of so many elements, then zeros.
template <typename Word, typename Element>
inline Words load_words(const Element* p, int64_t elements) {
  if constexpr (sizeof(Word) == 4) {
    return as_words(load(p, first_lanes(elements)));
  } else {
    return load_pairs(p, elements);
  }
}

// Matrix w [rows, width], whose rows are w_row elements apart, the other way round: word k of all rows in a
// line of lanes(rows), zero beyond them.
template <typename Word, typename Element>
inline void put_transposed(const Element* w, int64_t w_row, int64_t rows, int64_t width, float* out) {
  constexpr int64_t kStep = 16 * kPerWord<Word>;
  const int64_t line = lanes(rows);
  for (int64_t row = 0; row < rows; row += 16) {
    for (int64_t k = 0; k < width; k += kStep) {
      Words r[16];
      for (int i = 0; i < 16; ++i) {
        r[i] = row + i < rows ? load_words<Word>(w + (row + i) * w_row + k, width - k) : no_words();
      }
      transpose(r);
      const int64_t some = min_of(words<Word>(width - k), 16);
      float* lines = out + k / kPerWord<Word> * line + row;
      for (int64_t i = 0; i < some; ++i) store_words(lines + i * line, r[i]);
    }
  }
}

// The same matrix as it stands: its rows (of bf16 words, pairs of them) as lines of lanes(width) words.
template <typename Word, typename Element>
inline void put_rows(const Element* w, int64_t w_row, int64_t rows, int64_t width, float* out) {
  for (int64_t row = 0; row < rows; row += kPerWord<Word>, w += kPerWord<Word> * w_row) {
    for (int64_t j = 0; j < width; j += 16, out += 16) {
      if constexpr (sizeof(Word) == 4) {
        store_words(out, load_words<Word>(w + j, width - j));
      } else {
        store_words(out, pair(w + j, row + 1 < rows ? w + w_row + j : nullptr, first_lanes(width - j)));
      }
    }
  }
}

}  // namespace
}  // namespace tessera::ops::vectors
