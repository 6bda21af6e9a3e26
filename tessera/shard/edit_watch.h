// SPDX-License-Identifier: Apache-2.0
// Notices that tensors were changed. LibTorch's optimizers leave no trace on what they change, so besides the
// tensors' version counters a sample of their numbers is compared: an optimizer's step changes nearly all.
// Private to the room; no threads of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::shard {

class EditWatch {
 public:
  /// `tensor`: contiguous, in the host's memory.
  void watch(at::Tensor tensor) { tensors_.push_back(std::move(tensor)); }
  /// changed() compares with what the tensors are now.
  void remember() { remembered_ = fingerprint(); }
  /// True: certainly. False: no write through the tensors themselves, and none that reached the sample.
  bool changed() const { return fingerprint() != remembered_; }

 private:
  uint64_t fingerprint() const;

  std::vector<at::Tensor> tensors_;
  uint64_t remembered_ = 0;
};

}  // namespace tessera::shard
