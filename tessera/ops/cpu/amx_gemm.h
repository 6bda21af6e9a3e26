// SPDX-License-Identifier: Apache-2.0
// Matrix products in bf16 on AMX tiles. All matrices are row-major bf16 (the bits in a uint16_t); sums are
// fp32, in an order that depends on k alone: a row's result is the same bits beside any others, on any number
// of threads. Requires cpu_has_amx(). Calls may run on several threads.
//
// Note [Tiles]: a product works on tiles of 16 rows x 64 bytes. The left factor's tile holds 16 rows of 32
// consecutive k. The right factor's tile holds 16 pairs of k x 16 columns, a pair side by side, so it has to
// be packed; packed tiles lie one after another, k first. A block of 32 x 32 sums takes four tiles, a step of
// 32 k two of each factor.
//
// Note [Streamed]: four tile products take 64 cycles, in which the L2 cache does not give the four tiles that
// they need. So 32 rows of the left factor, one cut of k, stay in the L1 cache, while the right factor passes
// by from the L2 cache with a hint that keeps it out of the L1 cache. A long k is cut, and sums wait in
// memory for the next cut: narrower chunks of columns, of all k, would ask the L3 cache for left rows too
// often.
//
// Note [Beside tiles]: tile products leave the vector units and most of the caches' ports idle. Meanwhile, a
// row or two a step, the sums of the block before join those that wait, or go through the epilogue, and the
// left rows that come next are asked for.
#pragma once

#include "tessera/ops/cpu/vector_gemm.h"

namespace tessera::ops::amx {

/// vector_gemm.h's interface, with right factors packed as there, but for products that are given one cut of
/// k after the other.
struct Gemm : vectors::Gemm<vectors::Avx512, uint16_t> {
  static constexpr bool kCutsOutside = true;
  static constexpr int64_t kRows = 32, kColumns = 32;
  // The most k in the only cut, and in one of several: of 48 KiB of the L1 cache, 32 rows take all, or 40.
  static constexpr int64_t kOnlyCut = 768, kCut = 640;

  [[gnu::always_inline]] static constexpr int64_t chunks(int64_t columns) { return columns / kColumns + 1; }
  [[gnu::always_inline]] static constexpr int64_t sums_size(int64_t rows, int64_t columns) {
    return (rows + kRows - 1) / kRows * kRows * ((columns + kColumns - 1) / kColumns * kColumns);
  }
  [[gnu::always_inline]] static constexpr int64_t piece_of(int64_t k_size) {
    return vectors::equal_pieces(k_size, k_size <= kOnlyCut ? kOnlyCut : kCut, 32);
  }

  static void multiply() = delete;  // its right factor's chunks are others: multiply_cut()

  /// Some of k: `size` from `begin` on, a multiple of 32, of `of`.
  struct Cut {
    int64_t begin, size, of;
  };
  /// a [rows, cut.of] times the packed factor [cut.of, columns]: one cut's part of every sum, as much of it
  /// as no other thread takes. The first cut sets `sums` (as PartialSums::sums); after the last they go to
  /// the epilogue. All threads have ended a cut before one begins the next.
  static void multiply_cut(const uint16_t* a, int64_t rows, const Cut& cut, const uint16_t* packed,
                           int64_t columns, const Epilogue<uint16_t>& epilogue, float* sums,
                           const vectors::Turns& turns);

  static void pack_left(const uint16_t* w, int64_t w_columns, int64_t rows, int64_t k_size, int64_t begin,
                        int64_t end, uint16_t* packed, float* sums);
  static void multiply_packed(const uint16_t* left, int64_t rows, int64_t k, const uint16_t* packed,
                              int64_t columns, const Epilogue<uint16_t>& epilogue, const PartialSums& piece,
                              const vectors::Turns& turns);

  /// `turns` times four products of tiles that stay in registers: the CPU's peak. The numbers in them are of
  /// all sizes: with zeros the same CPU is a seventh faster. Returns the floating-point operations it made.
  static double resident_products(long turns);
};

}  // namespace tessera::ops::amx
