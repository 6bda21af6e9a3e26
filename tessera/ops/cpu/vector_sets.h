// SPDX-License-Identifier: Apache-2.0
// The instruction sets that the vector kernels are compiled for, each from the same files. A kernel's
// template argument Set is one of these.
#pragma once

#include <cstdint>

namespace tessera::ops::vectors {

/// 32 registers of 16 numbers: F, BW, DQ, VL. Requires cpu_has_avx512(), in kernels for bf16 cpu_has_amx()
/// will do.
struct Avx512 {
  static constexpr int kRegisters = 32;
  // A product's sums in registers: rows by columns. Its left factor is packed in panels of so many rows, by
  // blocks of so many.
  static constexpr int64_t kRows = 8, kColumns = 48, kLeftPanel = 16, kLeftBlock = 32;
  // What of a packed right factor stays in the L2 cache while rows pass by, in bytes; and k in words: those
  // of a cut, and the most of a piece, of which one block of columns stays there.
  static constexpr int64_t kCacheBytes = 640 * 1024, kCut = 768, kPiece = 800;
};

/// 16 registers of 8 numbers, with FMA. Requires cpu_has_avx2().
struct Avx2 {
  static constexpr int kRegisters = 16;
  static constexpr int64_t kRows = 6, kColumns = 16, kLeftPanel = 6, kLeftBlock = 48;
  static constexpr int64_t kCacheBytes = 320 * 1024, kCut = 512, kPiece = 1024;
};

}  // namespace tessera::ops::vectors
