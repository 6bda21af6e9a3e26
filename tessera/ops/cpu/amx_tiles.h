// SPDX-License-Identifier: Apache-2.0
// Tiles, and packing of left factors for them (see Note [Tiles] in amx_gemm.h). Private to the AMX kernels;
// like vectors.h without any standard header.
#pragma once

#include "tessera/ops/cpu/avx512_pack.h"

namespace tessera::ops::amx {
namespace {

using vectors::interleave;
using vectors::kTile;
using vectors::min_of;
using vectors::pack_right;
using vectors::pack_right_transposed;
using vectors::padded;
using vectors::store_tile;
using vectors::transpose;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Tiles are configured for this thread while it lives.
struct Tiles {
  Tiles() {
    // Static: g++ 12 believes that the instruction reads 8 bytes, and leaves the others of a local one unset.
    static constexpr TileConfig kConfig;
    _tile_loadconfig(&kConfig);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

constexpr int64_t kStep = 32;  // k of a step
constexpr int64_t kStepElements = 32 * kStep;

// The tiles of 32 rows on the left: (16 rows, step) at data + row half * lower + step * step; rows are `row`
// elements apart.
struct Left {
  const uint16_t* data;
  int64_t row, lower, step;
};

// Rows of a matrix as they lie.
inline Left left_rows(const uint16_t* a, int64_t row) { return {a, row, 16 * row, kStep}; }

// Copies up to 32 rows, `row` elements apart, as steps of two tiles, padded with zeros.
inline Left copy_rows(const uint16_t* a, int64_t row, int64_t rows, int64_t k, uint16_t* copy) {
  for (int64_t i = 0; i < 32; ++i) {
    for (int64_t j = 0; j < k; j += kStep) {
      const int64_t left = i < rows ? min_of(k - j, kStep) : 0;
      const auto mask = static_cast<__mmask32>((uint64_t{1} << left) - 1);
      _mm512_store_si512(copy + j * 32 + i * kStep, _mm512_maskz_loadu_epi16(mask, a + i * row + j));
    }
  }
  return {copy, 32, kTile, kStepElements};
}

// 32 x 32 sums over `steps` steps. `b`: packed; its right half is `right` on.
inline void product(const Left& left, const uint16_t* b, int64_t right, int64_t steps, float* c,
                    int64_t c_row) {
  asm volatile("" : : : "memory");  // g++ 12 does not see that a tile load reads memory
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const uint16_t* a = left.data;
  for (int64_t k = 0; k < steps; ++k, a += left.step, b += kTile) {
    _tile_loadd(4, a, left.row * 2);
    _tile_loadd(6, b, 64);
    _tile_loadd(5, a + left.lower, left.row * 2);
    _tile_loadd(7, b + right, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_row * 4);
  _tile_stored(1, c + 16, c_row * 4);
  _tile_stored(2, c + 16 * c_row, c_row * 4);
  _tile_stored(3, c + 16 * c_row + 16, c_row * 4);
}

// Left factor of 32 rows A[n][k] = w[k * w_row + n] for n < n_size.
inline void pack_left(const uint16_t* w, int64_t w_row, int64_t k_size, int64_t n_size, uint16_t* packed) {
  for (int64_t n = 0; n < 32; n += 16) {
    const __mmask16 mask = n < n_size ? vectors::first_lanes(n_size - n) : __mmask16(0);
    for (int64_t k = 0; k < k_size; k += 32, packed += kTile) {
      __m512i r[16];
      interleave(w + k * w_row + n, w_row, k_size - k, mask, r, nullptr);
      transpose(r);
      store_tile(r, packed);
    }
  }
}

}  // namespace
}  // namespace tessera::ops::amx
