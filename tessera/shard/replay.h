// SPDX-License-Identifier: Apache-2.0
// A second run of something that ran before, without its second effect on buffers. Private to the room.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <unordered_map>
#include <unordered_set>

namespace tessera::shard {

/// While one lives, this thread's operations are watched: tensors from outside that they change (BatchNorm's
/// running statistics and its counter, whatever is written in place) get their present values back when it
/// dies. Tensors made meanwhile are left alone. Nests.
class Replay {
 public:
  Replay();
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  /// Of an operation: `tensor` is about to be changed; `tensor` has been made. Requires: it has a storage.
  void will_change(const at::Tensor& tensor);
  void has_made(const at::Tensor& tensor);
  /// The innermost one of this thread, or null.
  static Replay* current();

 private:
  Replay* outer_;
  std::unordered_set<const void*> made_;  // storages
  struct Kept {
    at::Tensor tensor, value;
  };
  std::unordered_map<const void*, Kept> kept_;  // by storage
  c10::impl::IncludeDispatchKeyGuard watch_;
};

}  // namespace tessera::shard
