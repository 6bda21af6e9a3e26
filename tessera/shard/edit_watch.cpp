// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/edit_watch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "tessera/shard/storage.h"

namespace tessera::shard {
namespace {

constexpr int64_t kSampled = 16;  // values of each tensor

void mix(uint64_t& hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
  hash ^= hash >> 29;
}

void mix_bytes(uint64_t& hash, const at::Tensor& bytes) {
  const auto* data = static_cast<const std::byte*>(bytes.const_data_ptr());
  for (int64_t i = 0; i < bytes.numel(); i += 8) {
    uint64_t value = 0;
    std::memcpy(&value, data + i, static_cast<size_t>(std::min<int64_t>(bytes.numel() - i, 8)));
    mix(hash, value);
  }
}

/// The whole storage under a tensor, of its dtype.
at::Tensor storage_as_tensor(const at::Tensor& tensor) {
  const auto numel = static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
  return at::empty({0}, tensor.options()).set_(tensor.storage(), 0, {numel}, {1});
}

}  // namespace

void EditWatch::watch(std::vector<at::Tensor> tensors) {
  const at::NoGradGuard no_grad;
  tensors_ = std::move(tensors);
  samples_.clear();
  std::map<const void*, std::pair<at::Tensor, std::vector<int64_t>>> by_storage;
  for (const at::Tensor& tensor : tensors_) {
    auto& [first, places] = by_storage[storage_of(tensor)];
    if (!first.defined()) first = tensor;
    const int64_t numel = tensor.numel(), count = std::min(numel, kSampled);
    for (int64_t i = 0; i < count; ++i) places.push_back(tensor.storage_offset() + i * numel / count);
  }
  for (const auto& [storage, sampled] : by_storage) {
    const auto& [tensor, places] = sampled;
    if (places.empty()) continue;
    samples_.push_back({storage_as_tensor(tensor), at::tensor(places, at::kLong).to(tensor.device())});
  }
  remembered_ = fingerprint();
}

bool EditWatch::remember() {
  const uint64_t now = fingerprint();
  return std::exchange(remembered_, now) != now;
}

uint64_t EditWatch::fingerprint() const {
  const at::NoGradGuard no_grad;
  uint64_t hash = 1;
  for (const at::Tensor& tensor : tensors_) {
    if (!tensor.is_inference()) mix(hash, static_cast<uint64_t>(tensor._version()));
    mix(hash, reinterpret_cast<uintptr_t>(storage_of(tensor)));  // set_data() gives a tensor another one
  }
  // What a GPU holds comes in one copy.
  std::vector<at::Tensor> elsewhere;
  for (const Sample& sample : samples_) {
    const at::Tensor values = sample.memory.index_select(0, sample.places).view(at::kByte);
    values.is_cpu() ? mix_bytes(hash, values) : elsewhere.push_back(values);
  }
  if (!elsewhere.empty()) mix_bytes(hash, at::cat(elsewhere).to(at::kCPU));
  return hash;
}

}  // namespace tessera::shard
