// SPDX-License-Identifier: Apache-2.0
// Gemm (vector_gemm.h) but for what differs between dtypes: a file that includes this defines these before
// it, and instantiates Gemm after it. Like vector_math.h without any standard header.
//   Floats multiply_add(Floats sum, Words left, Words right, T)
//     a word times 16 words; T{} names the dtype in memory
//   Words load_words(const T* p, int64_t count)
//     up to 16 words: `count` elements, then zeros
//   void columns_of(w, row_step, rows, columns, r, sum)
//     16 words of k x 16 columns, what lies outside is zero; `sum`: adds the columns' sums
//   void interleave_pair(w, row_step, low, high, sums)
//     the same for 32 columns, where all words and columns exist
#pragma once

#include "tessera/ops/cpu/vector_deferred_epilogue.h"
#include "tessera/ops/cpu/vector_gemm.h"
#include "tessera/ops/cpu/vector_math.h"
#include "tessera/ops/cpu/vector_turns.h"
#if !defined(__AVX512F__)
#include "tessera/ops/cpu/avx2_sixes.h"
#endif

namespace tessera::ops::vectors {
namespace {

template <typename Packed>
constexpr int64_t kPerWord = 4 / sizeof(Packed);   // elements
constexpr int64_t kWordBytes = 4, kPanelRow = 64;  // bytes; a panel's row: a word of each of 16 columns

constexpr int64_t kCacheBytes = CompiledFor::kCacheBytes, kCut = CompiledFor::kCut;
// The fewest rows whose sums wait for another cut.
constexpr int64_t kWaiting = 8 * kRows;
// Words of k whose rows all of a group's columns are read from before the next: they stay in the caches.
constexpr int64_t kSlab = 64;

int64_t column_chunk(int64_t depth) {
  const int64_t columns = kCacheBytes / (depth * kWordBytes) / kColumns * kColumns;
  return columns < kColumns ? kColumns : columns;
}

// Where columns that begin at `column` end: blocks are the same however long the chunks are, so the last 16
// columns never stand alone (multiply_rows).
int64_t chunk_end(int64_t column, int64_t chunk, int64_t columns) {
  return column + chunk + 16 < columns ? column + chunk : columns;
}

inline const char* bytes(const void* p) { return static_cast<const char*>(p); }

// Block = (or +=, if `add`) kRows rows times kPanels panels over `depth` words. Rows of `a` are `row` bytes
// apart, words kStep bytes; panels of `b` are `panel` bytes apart. Meanwhile `pending` is finished: it may be
// what `block` held.
template <typename T, int kPanels, int64_t kStep>
void product(const char* a, int64_t row, const char* b, int64_t panel, int64_t depth, Block& block, bool add,
             DeferredEpilogue<T>& pending) {
  Floats sum[kRows][kPanels];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < kPanels; ++j) {
      sum[i][j] = zeros();
    }
  }
  const int64_t between = depth / (pending.left + 1);
  for (int64_t k = 0; k < depth;) {
    const int64_t stop = pending.left > 0 ? k + between : depth;
    for (; k < stop; ++k, a += kStep, b += kPanelRow) {
      Words right[kPanels];

#pragma GCC unroll 3
      for (int j = 0; j < kPanels; ++j) {
        right[j] = load_words(b + j * panel);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const Words left = broadcast_word(a + i * row);

#pragma GCC unroll 3
        for (int j = 0; j < kPanels; ++j) {
          sum[i][j] = multiply_add(sum[i][j], left, right[j], T());
        }
      }
    }
    if (pending.left > 0) finish_next(pending);
  }
  finish_all(pending);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < kPanels; ++j) {
      float* c = block.c + i * kColumns + 16 * j;
      store(c, add ? load(c) + sum[i][j] : sum[i][j]);
    }
  }
}

// The columns of a packed factor, from one word of k on.
struct Right {
  const char* words;  // of column 0
  int64_t panel;      // bytes from one panel to the next
  int64_t columns;    // in all
};

// One cut of k: `depth` words of it, and whether sums begin or end here.
struct Cut {
  int64_t depth;
  bool first, last;
};

// Of so many columns.
template <typename T, int64_t kStep>
auto kernel_for(int64_t columns) {
  if constexpr (kColumns > 16) {
    if (columns > 32) return product<T, 3, kStep>;
    if (columns > 16) return product<T, 2, kStep>;
  }
  return product<T, 1, kStep>;
}

// Up to kRows rows by columns [begin, end). `blocks`: one a block of columns from column 0 on if they wait
// for another cut, else one for all.
template <typename T, int64_t kStep>
void multiply_rows(const char* words, int64_t words_row, const Right& right, int64_t begin, int64_t end,
                   const Cut& cut, Block* blocks, int64_t row, int64_t rows, DeferredEpilogue<T>& pending) {
  const int64_t step = cut.first && cut.last ? 0 : 1;
  Block* next = blocks + begin / kColumns * step;
  int64_t width = 0;
  for (int64_t column = begin; column < end; column += width, next += step) {
    Block& block = *next;
    const char* b = right.words + column / 16 * right.panel;
    // A block of one panel has too few sums to keep the multipliers busy: the last 64 columns are halved.
    const int64_t left = end - column, wide = left > kColumns && left <= 64 ? 32 : left;
    width = min_of(wide, kColumns);
    const auto kernel = kernel_for<T, kStep>(wide);
    for (int64_t i = 0; !cut.first && i < kRows * kColumns; i += 16) __builtin_prefetch(block.c + i, 1);
    kernel(words, words_row, b, right.panel, cut.depth, block, !cut.first, pending);
    if (cut.last) defer_epilogue(pending, block, row, rows, column, width, right.columns);
  }
}

// Asks for rows that come next, into the L2 cache.
template <typename T>
void prefetch_rows(const T* a, int64_t row_step, int64_t rows, int64_t count) {
  for (int64_t i = 0; i < min_of(rows, kRows); ++i) {
    for (int64_t j = 0; j < count; j += 64 / sizeof(T)) __builtin_prefetch(a + i * row_step + j, 0, 2);
  }
}

// Copies `rows` rows of `count` elements into kRows rows of `depth` words, padded with zeros.
template <typename T, typename Packed>
void copy_rows(const T* a, int64_t row_step, int64_t rows, int64_t count, int64_t depth, Packed* out) {
  constexpr int64_t kWord = kPerWord<Packed>;
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < depth * kWord; j += 16 * kWord) {
      const int64_t left = i < rows && j < count ? count - j : 0;
      store_words(out + i * depth * kWord + j, load_words(a + i * row_step + j, left));
    }
  }
}

// A left factor [rows, k] of any size. `padded`: memory for kRows rows of `most` words.
template <typename T, typename Packed>
struct LeftRows {
  const T* a;
  int64_t rows, k, most;
  Packed* padded;
};

// Some rows by columns [column, stop), of the cut of k that begins at `word`; `across`: of `blocks`, from one
// kRows rows to the next.
template <typename T, typename Packed>
void multiply_some(const LeftRows<T, Packed>& left, const Rows& some, int64_t word, const Right& right,
                   int64_t column, int64_t stop, const Cut& cut, Block* blocks, int64_t across,
                   DeferredEpilogue<T>& pending) {
  constexpr int64_t kWord = kPerWord<Packed>;
  constexpr bool kAsTheyLie = sizeof(T) == sizeof(Packed);
  const int64_t k = left.k;
  for (int64_t row = some.first; row < some.last; row += kRows, blocks += across) {
    const T* words = left.a + row * k + word * kWord;
    prefetch_rows(words + kRows * k, k, left.rows - row - kRows, min_of(k - word * kWord, left.most * kWord));
    const int64_t rows = min_of(some.last - row, kRows);
    const char* first = bytes(words);
    int64_t step = k * int64_t{sizeof(T)};
    if (!kAsTheyLie || rows < kRows || k % kWord != 0) {
      copy_rows(words, k, rows, min_of(k - word * kWord, cut.depth * kWord), left.most, left.padded);
      first = bytes(left.padded);
      step = left.most * kWordBytes;
    }
    multiply_rows<T, kWordBytes>(first, step, right, column, stop, cut, blocks, row, rows, pending);
  }
}

// 16 words of k x 16 columns, words first.
template <typename Packed>
void store_words(const Words (&r)[16], Packed* out) {
  for (int i = 0; i < 16; ++i) {
    store_words(out + i * 16 * kPerWord<Packed>, r[i]);
  }
}

// Up to 16 words of k x up to 32 columns of w [k_size, w_row] as two panels; what lies outside is zero.
// `sums`: adds what each column sums to, of 16 columns each.
template <typename T, typename Packed>
void pack_words(const T* w, int64_t w_row, int64_t k_size, int64_t columns, Packed* low, Packed* high,
                Floats* sums) {
  if (k_size >= 16 * kPerWord<Packed> && columns >= 32) {
    return interleave_pair(w, w_row, low, high, sums);
  }
  for (int half = 0; half < 2; ++half) {
    const int64_t left = columns - 16 * half;
    if (half == 1 && high == nullptr) return;
    Words r[16];
    columns_of(w + 16 * half, w_row, k_size, left > 0 ? first_lanes(left) : Mask(0), r,
               sums == nullptr ? nullptr : sums + half);
    store_words(r, half == 0 ? low : high);
  }
}

// Asks for what pack_words comes to later: rows lie pages apart, which the CPU does not foresee.
template <int64_t kWord, typename T>
void prefetch_tile(const T* w, int64_t w_row, int64_t rows) {
  for (int64_t i = 0; i < min_of(rows, 16 * kWord); ++i) __builtin_prefetch(w + i * w_row, 0, 2);
}

// Columns of w [k_size, w_row] as panels of 16 columns, `panel` elements apart; adds to `sums` what they sum
// to over k.
template <typename T, typename Packed>
void pack_columns(const T* w, int64_t w_row, int64_t k_size, int64_t columns, Packed* packed, int64_t panel,
                  float* sums) {
  constexpr int64_t kWord = kPerWord<Packed>, kStep = 16 * kWord, kTogether = kSlab * kWord;
  for (int64_t slab = 0; slab < k_size; slab += kTogether) {
    for (int64_t column = 0; column < columns; column += 32) {
      const int64_t left = columns - column;
      const Mask lanes[2] = {first_lanes(left), left > 16 ? first_lanes(left - 16) : Mask(0)};
      Floats sum[2] = {load(sums + column, lanes[0]), load(sums + column + 16, lanes[1])};
      Packed* out = packed + column / 16 * panel + slab * 16;
      for (int64_t k = slab; k < min_of(slab + kTogether, k_size); k += kStep, out += 16 * kStep) {
        prefetch_tile<kWord>(w + (k + kTogether) * w_row + column, w_row, k_size - k - kTogether);
        pack_words(w + k * w_row + column, w_row, k_size - k, left, out, left > 16 ? out + panel : nullptr,
                   sum);
      }
      store(sums + column, lanes[0], sum[0]);
      store(sums + column + 16, lanes[1], sum[1]);
    }
  }
}

}  // namespace

template <typename Set, typename T, typename Packed>
void Gemm<Set, T, Packed>::pack_transposed(const T* w, int64_t n_size, int64_t k_size, int64_t begin,
                                           int64_t end, Packed* packed) {
  const int64_t last = min_of(end * 32, padded(n_size));
  Packed* out = packed + begin * 32 * depth(k_size) * kWord;
  for (int64_t n = begin * 32; n < last; n += 16) {
    for (int64_t k = 0; k < k_size; k += 16 * kWord, out += 256 * kWord) {
      Words r[16];
      for (int i = 0; i < 16; ++i) {
        r[i] = n + i < n_size ? load_words(w + (n + i) * k_size + k, k_size - k) : no_words();
      }
      transpose(r);
      store_words(r, out);
    }
  }
}

// Row by row, as w lies: 16 columns of every row would be a new page each.
template <typename Set, typename T, typename Packed>
void Gemm<Set, T, Packed>::pack(const T* w, int64_t k_size, int64_t n_size, int64_t begin, int64_t end,
                                bool gelu, Packed* packed) {
  alignas(64) T made[16 * kWord * 32];
  for (int64_t block = begin; block < end; ++block) {
    const int64_t k = block * 16 * kWord;
    Packed* out = packed + block * 256 * kWord;
    const int64_t panel = 16 * depth(k_size) * kWord;
    for (int64_t n = 0; n < n_size; n += 32, out += 2 * panel) {
      prefetch_tile<kWord>(w + (k + 16 * kWord) * n_size + n, n_size, k_size - k - 16 * kWord);
      const T* words = w + k * n_size + n;
      if (gelu) gelu_of(words, n_size, min_of(k_size - k, 16 * kWord), min_of(n_size - n, 32), made, 32);
      pack_words(gelu ? made : words, gelu ? 32 : n_size, k_size - k, n_size - n, out, out + panel, nullptr);
    }
  }
}

template <typename Set, typename T, typename Packed>
void Gemm<Set, T, Packed>::multiply(const T* a, int64_t rows, int64_t k, const Packed* packed,
                                    int64_t columns, const Epilogue<T>& epilogue, const Turns& turns) {
  const int64_t words = (k + kWord - 1) / kWord, cuts = (words + kCut - 1) / kCut;
  const int64_t most = depth((k + cuts - 1) / cuts), chunk = column_chunk(most);
  const int64_t across =
      cuts == 1 ? 0 : (columns + kColumns - 1) / kColumns;  // blocks that wait in kRows rows
  const Buffer<Block> blocks(cuts == 1 ? 1 : kGroup / kRows * across);
  const bool as_they_lie = sizeof(T) == sizeof(Packed) && k % kWord == 0 && rows % kRows == 0;
  const Buffer<Packed> padded(as_they_lie ? 0 : kRows * most * kWord);
  const LeftRows<T, Packed> left{a, rows, k, most, padded.data()};
  DeferredEpilogue<T> pending{.epilogue = &epilogue};
  if (cuts == 1) {
    const Right right{bytes(packed), depth(k) * kPanelRow, columns};
    for (int64_t column = 0, stop = 0, index = 0; column < columns; column = stop, ++index) {
      stop = chunk_end(column, chunk, columns);
      for (Rows some = take_rows(turns, index, rows, kRows); some.first < some.last;
           some = take_rows(turns, index, rows, kRows)) {
        multiply_some(left, some, 0, right, column, stop, {words, true, true}, blocks.data(), 0, pending);
      }
    }
  } else {
    for (Rows some = take_rows(turns, 0, rows, kWaiting); some.first < some.last;
         some = take_rows(turns, 0, rows, kWaiting)) {
      for (int64_t word = 0; word < words; word += most) {
        const Cut cut{min_of(most, words - word), word == 0, word + most >= words};
        const Right right{bytes(packed + word * 16 * kWord), depth(k) * kPanelRow, columns};
        for (int64_t column = 0, stop = 0; column < columns; column = stop) {
          stop = chunk_end(column, chunk, columns);
          multiply_some(left, some, word, right, column, stop, cut, blocks.data(), across, pending);
        }
      }
    }
  }
  finish_all(pending);
}

template <typename Set, typename T, typename Packed>
void Gemm<Set, T, Packed>::pack_left(const T* w, int64_t w_columns, int64_t rows, int64_t k_size,
                                     int64_t begin, int64_t end, Packed* packed, float* sums) {
  const int64_t last = min_of(end * kLeftBlock, rows);
  const int64_t panel = CompiledFor::kLeftPanel * depth(k_size) * kWord;
  for (int64_t first = begin * kLeftBlock; first < last; first += kGroup) {
    Packed* out = packed + first / CompiledFor::kLeftPanel * panel;
    const int64_t some = min_of(kGroup, last - first);
#if defined(__AVX512F__)
    pack_columns(w + first, w_columns, k_size, some, out, panel, sums + first);
#else
    pack_sixes<kSlab>(w + first, w_columns, k_size, some, out, panel, sums + first);
#endif
  }
}

template <typename Set, typename T, typename Packed>
void Gemm<Set, T, Packed>::multiply_packed(const Packed* left, int64_t rows, int64_t k, const Packed* packed,
                                           int64_t columns, const Epilogue<T>& epilogue,
                                           const PartialSums& piece, const Turns& turns) {
  const int64_t words = depth(k), chunk = column_chunk(words), across = (columns + kColumns - 1) / kColumns;
  const Right right{bytes(packed), words * kPanelRow, columns};
  const Cut cut{(k + kWord - 1) / kWord, piece.first, piece.last};
  constexpr int64_t kPanel = CompiledFor::kLeftPanel;
  Block alone;  // of a product that waits for no other piece
  DeferredEpilogue<T> pending{.epilogue = &epilogue};
  for (int64_t column = 0, stop = 0, index = 0; column < columns; column = stop, ++index) {
    stop = chunk_end(column, chunk, columns);
    for (Rows some = take_rows(turns, index, rows, kRows); some.first < some.last;
         some = take_rows(turns, index, rows, kRows)) {
      for (int64_t row = some.first; row < some.last; row += kRows) {
        // All of a panel's columns, or eight of sixteen, side by side in each word.
        const Packed* words_of_row = left + (row / kPanel * kPanel * words + row % kPanel) * kWord;
        Block* band =
            cut.first && cut.last ? &alone : reinterpret_cast<Block*>(piece.sums) + row / kRows * across;
        // The panel after this, as much of it each time as it has such groups of columns.
        constexpr int64_t kParts = kPanel / kRows, kLine = 64 / kWordBytes;
        const Packed* ahead =
            left +
            ((row / kPanel + 1) * kPanel * words + row % kPanel / kRows * words / kParts * kPanel) * kWord;
        for (int64_t i = 0; i < words * kPanel / kParts / kLine; ++i) {
          __builtin_prefetch(ahead + i * kLine * kWord, 0, 2);
        }
        multiply_rows<T, kPanel * kWordBytes>(bytes(words_of_row), kWordBytes, right, column, stop, cut, band,
                                              row, min_of(some.last - row, kRows), pending);
      }
    }
  }
  finish_all(pending);
}

template <typename Set, typename T, typename Packed>
void Gemm<Set, T, Packed>::gelu_backward(const T* gradient, const T* linear, T* out, int64_t count) {
  gelu_backward_of(gradient, linear, out, count);
}

// As many chains as a block has sums hide a product's latency; the empty statement keeps the compiler from
// dropping them (of a local variable: an array's element it would put into memory).
template <typename Set, typename T, typename Packed>
double Gemm<Set, T, Packed>::resident_products(long turns) {
  constexpr int64_t kVectors = kColumns / 16;
  Floats sum[kRows][kVectors];
  for (auto& row : sum) {
    for (auto& s : row) s = zeros();
  }
  const Words factor = no_words();
  for (long i = 0; i < turns; ++i) {
    for (int row = 0; row < kRows; ++row) {
      for (int j = 0; j < kVectors; ++j) {
        Floats s = multiply_add(sum[row][j], factor, factor, T());
        keep(s);
        sum[row][j] = s;
      }
    }
  }
  return double{kRows * kVectors} * 2 * 16 * kWord * static_cast<double>(turns);
}

}  // namespace tessera::ops::vectors
