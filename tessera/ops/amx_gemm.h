// Matrix products in bf16 on AMX tiles, with what follows them applied while the result is in the L1 cache.
// All matrices are row-major bf16 (the bits in a uint16_t); sums are fp32. Requires cpu_has_amx(). Calls may
// run on several threads.
//
// Note [Tiles]: a product works on tiles of 16 rows x 64 bytes. The left factor's tile holds 16 rows of 32
// consecutive k; it is read from the matrix as it lies. The right factor's tile holds 16 pairs of k x 16
// columns, a pair side by side, so it has to be packed; packed tiles lie one after another, k first.
#pragma once

#include <cstdint>

#include "tessera/ops/epilogue.h"

namespace tessera::ops::amx {

constexpr int64_t kRows = 32;  // rows and columns of the result that are in registers at a time

/// Elements of a packed factor for k x columns.
constexpr int64_t packed_size(int64_t k, int64_t columns) {
  return (k + 31) / 32 * 32 * ((columns + 31) / 32 * 32);
}

constexpr int64_t blocks(int64_t size) { return (size + 31) / 32; }

/// Packs the right factor B[k][n] = w[n * k_size + k], the transpose of w [n_size, k_size]: blocks
/// [begin, end) of 32 n.
void pack_transposed(const uint16_t* w, int64_t n_size, int64_t k_size, int64_t begin, int64_t end,
                     uint16_t* packed);
/// Packs the right factor B[k][n] = w[k * n_size + n], or `gelu` of that: blocks [begin, end) of 32 k.
void pack(const uint16_t* w, int64_t k_size, int64_t n_size, int64_t begin, int64_t end, bool gelu,
          uint16_t* packed);
using Epilogue = ops::Epilogue<uint16_t>;

/// Rows [begin, end) of a [rows, k] times the packed factor [k, columns]. begin: a multiple of 32.
void multiply(const uint16_t* a, int64_t begin, int64_t end, int64_t k, const uint16_t* packed,
              int64_t columns, const Epilogue& epilogue);
/// Rows that multiply_transposed packs at a time.
int64_t transposed_group(int64_t k);
/// Rows [begin, end) of the transpose of w [k, w_columns] times the packed factor [k, columns], and the sums
/// of w's columns [begin, end). begin: a multiple of 32. `scratch`: packed_size(k, transposed_group(k))
/// elements.
void multiply_transposed(const uint16_t* w, int64_t w_columns, int64_t begin, int64_t end, int64_t k,
                         const uint16_t* packed, int64_t columns, const Epilogue& epilogue, float* sums,
                         uint16_t* scratch);

/// out = gradient * gelu'(linear), element by element.
void gelu_backward(const uint16_t* gradient, const uint16_t* linear, uint16_t* out, int64_t count);

}  // namespace tessera::ops::amx
