// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/edit_watch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

namespace tessera::shard {
namespace {

constexpr int64_t kSampled = 16;  // numbers of each tensor

void mix(uint64_t& hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
  hash ^= hash >> 29;
}

}  // namespace

uint64_t EditWatch::fingerprint() const {
  uint64_t hash = 1;
  for (const at::Tensor& tensor : tensors_) {
    if (!tensor.is_inference()) mix(hash, static_cast<uint64_t>(tensor._version()));
    const int64_t numel = tensor.numel(), width = tensor.element_size();
    const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
    const int64_t count = std::min(numel, kSampled);
    for (int64_t i = 0; i < count; ++i) {
      uint64_t value = 0;
      std::memcpy(&value, bytes + i * numel / count * width,
                  static_cast<size_t>(std::min<int64_t>(width, 8)));
      mix(hash, value);
    }
  }
  return hash;
}

}  // namespace tessera::shard
