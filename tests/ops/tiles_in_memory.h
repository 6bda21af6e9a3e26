// SPDX-License-Identifier: Apache-2.0
// AMX's instructions on tiles in memory, so that its kernels can be tested on a CPU that only has AVX-512:
// included before they are compiled once more, in a namespace of their own (CMakeLists.txt). Semantics:
// Intel's manual, "TDPBF16PS" and "TILELOADD"; all tiles are 16 rows of 64 bytes, as TileConfig has them.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace tessera::tiles_in_memory {
namespace {

struct alignas(64) Tile {
  unsigned char rows[16][64];
};
thread_local Tile tiles[8];

inline float wide(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline void load(int tile, const void* base, int64_t stride) {
  for (int i = 0; i < 16; ++i)
    std::memcpy(tiles[tile].rows[i], static_cast<const char*>(base) + i * stride, 64);
}

inline void store(int tile, void* base, int64_t stride) {
  for (int i = 0; i < 16; ++i) std::memcpy(static_cast<char*>(base) + i * stride, tiles[tile].rows[i], 64);
}

// c[i][j] += a[i][2k] b[k][2j], then a[i][2k + 1] b[k][2j + 1], for one k after the other.
inline void multiply(int to, int left, int right) {
  for (int i = 0; i < 16; ++i) {
    uint16_t a[32], b[32];
    float c[16];
    std::memcpy(a, tiles[left].rows[i], 64);
    std::memcpy(c, tiles[to].rows[i], 64);
    for (int k = 0; k < 16; ++k) {
      std::memcpy(b, tiles[right].rows[k], 64);
      for (int j = 0; j < 16; ++j) {
        c[j] += wide(a[2 * k]) * wide(b[2 * j]);
        c[j] += wide(a[2 * k + 1]) * wide(b[2 * j + 1]);
      }
    }
    std::memcpy(tiles[to].rows[i], c, 64);
  }
}

}  // namespace
}  // namespace tessera::tiles_in_memory

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) static_cast<void>(config)
#define _tile_release() static_cast<void>(0)
#define _tile_loadd(tile, base, stride) tiles_in_memory::load(tile, base, stride)
#define _tile_stream_loadd(tile, base, stride) tiles_in_memory::load(tile, base, stride)
#define _tile_stored(tile, base, stride) tiles_in_memory::store(tile, base, stride)
#define _tile_zero(tile) tiles_in_memory::tiles[tile] = {}
#define _tile_dpbf16ps(to, left, right) tiles_in_memory::multiply(to, left, right)
