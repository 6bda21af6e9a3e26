// SPDX-License-Identifier: Apache-2.0
// For many bytes, which no cache would hold until they are read. Private to this room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tessera::mesh {

/// std::memcpy, but much is written past the caches where the CPU can: else they read what is written over, a
/// third of the traffic.
inline void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes) {
#ifdef __SSE2__
  constexpr size_t kMuch = size_t{1} << 16, kLine = 64, kWord = sizeof(__m128i);
  if (bytes >= kMuch) {
    const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
    std::memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    const size_t lines = bytes / kLine * kLine;
    for (size_t i = 0; i < lines; i += kWord) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
    _mm_sfence();
    to += lines, from += lines, bytes -= lines;
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace tessera::mesh
