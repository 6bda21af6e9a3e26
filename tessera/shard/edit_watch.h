// SPDX-License-Identifier: Apache-2.0
// Notices that tensors were changed. LibTorch's optimizers leave no trace on what they change, so besides the
// tensors' version counters a sample of their values is compared: an optimizer's step changes nearly all.
// Private to the room; no threads of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::shard {

class EditWatch {
 public:
  /// From now on watches these: contiguous, on any devices, many of them in one storage. Compares with what
  /// they are now.
  void watch(std::vector<at::Tensor> tensors);
  /// Compares with what the tensors are now from here on. Returns what changed() was. Blocks until a GPU has
  /// done what was queued there.
  bool remember();
  /// True: certainly. False: no write through the tensors themselves, and none that reached the sample.
  /// Blocks as remember() does.
  bool changed() const { return fingerprint() != remembered_; }

 private:
  /// What is sampled of one storage.
  struct Sample {
    at::Tensor memory;  // 1-D: the storage
    at::Tensor places;  // int64, on its device
  };

  uint64_t fingerprint() const;

  std::vector<at::Tensor> tensors_;
  std::vector<Sample> samples_;
  uint64_t remembered_ = 0;
};

}  // namespace tessera::shard
