// SPDX-License-Identifier: Apache-2.0
// Addresses of operands, as cuBLASLt asks for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

namespace tessera::cuda {

/// The largest power of two, up to 256, that divides the address: what an algorithm of cuBLASLt may rely on.
inline uint32_t alignment(const void* data) {
  constexpr uint64_t kMost = 256;
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>(std::min<uint64_t>(kMost, address & (~address + 1)));
}

/// `vector`, or a copy of it where it does not begin at a multiple of 16 bytes. Preferences of cuBLASLt state
/// the alignment of matrices, not of a bias, which its epilogues may read 16 bytes at a time. A bias may
/// begin at 2 bytes: parameters of odd sizes lie at the end of their unit without gaps (shard::Unit::offset).
/// It is small, so it is copied; a matrix is never copied, since its alignment is stated.
inline at::Tensor aligned_vector(const at::Tensor& vector) {
  constexpr uint32_t kLoad = 16;
  return alignment(vector.const_data_ptr()) % kLoad == 0 ? vector : vector.clone();
}

}  // namespace tessera::cuda
