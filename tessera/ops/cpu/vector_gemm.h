// SPDX-License-Identifier: Apache-2.0
// Matrix products in vector registers, with what follows them applied while the result is in the L1 cache.
// All matrices are row-major; sums are fp32, in an order that depends on k alone: a row's result is the same
// bits beside any others, on any number of threads. Calls may run on several threads.
//
// Note [Words]: a product goes through k by words of 32 bits: one k of fp32, or two of bf16 side by side. A
// step multiplies one word of each of 8 rows, broadcast, by that word of 48 columns: 24 registers of sums of
// AVX-512's 32. (Of AVX2's 16 it takes 12: 6 rows by 16 columns.)
// The right factor is packed in panels of 16 columns, words first; for bf16 that is the format of Note
// [Tiles] in amx_gemm.h. Where bf16 is multiplied by fp32's instructions, packing widens, and the rows of
// a step are copied, wide, before they meet a chunk of columns. A long k is cut, so that a cut of a panel's
// neighbours stays in the L2 cache while rows pass by; sums wait in between.
//
// Note [Turns]: threads take rows when they have time for some, the fewer the fewer are left. Of rows that
// are dealt out beforehand all threads wait for the slowest: for the one whose core has other programs, or
// whose caches a neighbour uses.
#pragma once

#include <cstdint>

#include "tessera/ops/cpu/epilogue.h"
#include "tessera/ops/cpu/vector_sets.h"

namespace tessera::ops::vectors {

/// The rows of one product that its threads have taken so far, of each chunk of columns (Note [Turns]).
struct Turns {
  int64_t threads = 1;
  int64_t* taken = nullptr;  // [Gemm::chunks(columns)], zero before the first thread begins
};

/// Elements in each of as few pieces as k_size takes, all about as long, if a piece has `most` at most;
/// multiples of `whole`.
[[gnu::always_inline]] constexpr int64_t equal_pieces(int64_t k_size, int64_t most, int64_t whole) {
  const int64_t pieces = (k_size + most - 1) / most;
  return pieces <= 1 ? k_size : ((k_size + pieces - 1) / pieces + whole - 1) / whole * whole;
}

/// T: elements in memory, float or uint16_t (the bits of bf16). Packed: those of factors as they are
/// multiplied, float, or uint16_t, which requires Avx512 and AVX512_BF16. Gemm<Set, uint16_t, float>
/// multiplies bf16 by fp32's instructions.
template <typename Set, typename T, typename Packed = T>
struct Gemm {
  using Element = T;
  using PackedElement = Packed;
  static constexpr bool kCutsOutside = false;           // multiply() cuts a long k
  static constexpr int64_t kWord = 4 / sizeof(Packed);  // elements of a word
  static constexpr int64_t kRows = Set::kRows, kColumns = Set::kColumns;
  static constexpr int64_t kLeftBlock = Set::kLeftBlock;

  /// Elements of a packed factor for k x columns.
  [[gnu::always_inline]] static constexpr int64_t packed_size(int64_t k, int64_t columns) {
    return depth(k) * kWord * ((columns + 31) / 32 * 32);
  }
  /// Words of a packed k.
  [[gnu::always_inline]] static constexpr int64_t depth(int64_t k) {
    return ((k + kWord - 1) / kWord + 15) / 16 * 16;
  }

  /// Packs the right factor B[k][n] = w[n * k_size + k], the transpose of w [n_size, k_size]: blocks
  /// [begin, end) of 32 n.
  static void pack_transposed(const T* w, int64_t n_size, int64_t k_size, int64_t begin, int64_t end,
                              Packed* packed);
  /// Packs the right factor B[k][n] = w[k * n_size + n], or `gelu` of that: blocks [begin, end) of 16 words
  /// of k.
  static void pack(const T* w, int64_t k_size, int64_t n_size, int64_t begin, int64_t end, bool gelu,
                   Packed* packed);

  /// The most chunks that a product has of so many columns.
  [[gnu::always_inline]] static constexpr int64_t chunks(int64_t columns) { return columns / kColumns + 1; }

  /// a [rows, k] times the packed factor [k, columns]: as much of it as no other thread takes.
  static void multiply(const T* a, int64_t rows, int64_t k, const Packed* packed, int64_t columns,
                       const Epilogue<T>& epilogue, const Turns& turns);

  /// Where the sums of a product stand whose k comes in pieces.
  struct PartialSums {
    bool first = true, last = true;  // the first sets the sums; after the last they go to the epilogue
    float* sums = nullptr;           // sums_size(rows, columns), 64 bytes aligned; unused by an only piece
  };
  [[gnu::always_inline]] static constexpr int64_t sums_size(int64_t rows, int64_t columns) {
    return (rows + kRows - 1) / kRows * kRows * ((columns + kColumns - 1) / kColumns * kColumns);
  }
  /// The most k in a piece: so many that one block of columns stays in the L2 cache.
  static constexpr int64_t kPiece = Set::kPiece * kWord;
  /// k in each of as few pieces as k_size takes, all about as long.
  [[gnu::always_inline]] static constexpr int64_t piece_of(int64_t k_size) {
    return equal_pieces(k_size, kPiece, 16 * kWord);
  }
  /// Elements of a packed left factor [rows, k].
  [[gnu::always_inline]] static constexpr int64_t left_size(int64_t k, int64_t rows) {
    return depth(k) * kWord * ((rows + kLeftBlock - 1) / kLeftBlock * kLeftBlock);
  }
  /// Packs the left factor A[row][k] = w[k * w_columns + row], the transpose of w [k_size, w_columns]: blocks
  /// [begin, end) of kLeftBlock rows of it, of `rows`. Adds to sums [rows] what each row sums to over k.
  static void pack_left(const T* w, int64_t w_columns, int64_t rows, int64_t k_size, int64_t begin,
                        int64_t end, Packed* packed, float* sums);
  /// Such a factor [rows, k] times the packed factor [k, columns], one piece of k, at most kPiece: as much of
  /// it as no other thread takes.
  static void multiply_packed(const Packed* left, int64_t rows, int64_t k, const Packed* packed,
                              int64_t columns, const Epilogue<T>& epilogue, const PartialSums& piece,
                              const Turns& turns);

  /// out = gradient * gelu'(linear), element by element.
  static void gelu_backward(const T* gradient, const T* linear, T* out, int64_t count);

  /// `turns` times a block's products, of operands that stay in registers: the CPU's peak. Returns the
  /// floating-point operations that it made.
  static double resident_products(long turns);
};

}  // namespace tessera::ops::vectors
